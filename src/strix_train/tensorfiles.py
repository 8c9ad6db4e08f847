"""What a safetensors file says of its tensors, by its header alone: its length in 8 bytes, then JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def entries(file: Path) -> list[dict[str, Any]]:
    """Return what the header says of each tensor: `dtype`, `shape`. Raises OSError, and ValueError for no such file."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if size > file.stat().st_size:
            raise ValueError(f"{file} is not a whole safetensors file")
        header = json.loads(stream.read(size))
    return [entry for name, entry in header.items() if name != "__metadata__"]
