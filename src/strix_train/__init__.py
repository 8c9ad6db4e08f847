"""The training entrypoint: one recipe in, one run folder out. It imports nothing of the host driver.

Importing this package, its command line, its recipe and its data modules loads no torch.
"""

from __future__ import annotations

__version__ = "0.1.0"
