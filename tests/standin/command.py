"""The product's command line with names of its own for images: `python -m tests.standin.command build …`.

An image of stubs must never bear a name that people type, not even for the time of a test.
"""

from __future__ import annotations

import sys

from strix_finetune import names

PREFIX = "localhost/strix-standin"
# before anything else is imported: one module keeps a copy
names.PREFIX = PREFIX

if __name__ == "__main__":
    from strix_finetune.__main__ import main

    sys.exit(main())
