"""How many weights a file of a model holds, by its header alone."""

from __future__ import annotations

import math
from pathlib import Path

from strix_train.tensorfiles import entries

# Formats of 4 bits are stored two weights a byte, as bytes.
_PACKED = {"U8": 2}


def weights(file: Path) -> int:
    """Return the number of weights in a safetensors file; 0 for a broken one, which its reader tells of."""
    try:
        return sum(math.prod(entry["shape"]) * _PACKED.get(entry["dtype"], 1) for entry in entries(file))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0
