"""The product's command line with names of its own for images: `python -m tests.standin.command build …`.

An image of stubs must never bear a name that people type, not even for the time of a test; and two runs of the tests on
one engine must not take each other's. STANDIN_PREFIX says what the names begin with.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from strix_finetune import names

_FAMILY = "localhost/strix-standin-"
VARIABLE = "STANDIN_PREFIX"
# of this process's images, or those of the one that started it
PREFIX = os.environ.get(VARIABLE) or f"{_FAMILY}{os.getpid()}"


def is_ours(tag: str) -> bool:
    """Whether a name is of this run."""
    return tag.startswith((f"{PREFIX}/", f"{PREFIX}:"))


def is_left_over(tag: str) -> bool:
    """Whether a name is of a run that has ended without tidying up."""
    number = tag.removeprefix(_FAMILY).replace("/", ":").partition(":")[0]
    return tag.startswith(_FAMILY) and number.isdigit() and not Path(f"/proc/{number}").exists()


if __name__ == "__main__":
    # before anything else is imported: one module keeps a copy
    names.PREFIX = PREFIX
    from strix_finetune.__main__ import main

    sys.exit(main())
