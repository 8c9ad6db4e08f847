"""How many weights a file of a model holds, by its header alone."""

from __future__ import annotations

import json
import math
from pathlib import Path

# Formats of 4 bits are stored two weights a byte, as bytes.
_PACKED = {"U8": 2}


def weights(file: Path) -> int:
    """Return the number of weights in a safetensors file; 0 for a broken one, which its reader tells of."""
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if size > file.stat().st_size:
                return 0
            header = json.loads(stream.read(size))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        return sum(math.prod(entry["shape"]) * _PACKED.get(entry["dtype"], 1) for entry in tensors)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0
