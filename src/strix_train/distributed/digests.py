"""Digests of what the processes train: the encoded rows, and the weights by a few numbers of each."""

from __future__ import annotations

import hashlib
import json
from typing import Any

# Numbers of each weight that are looked at, evenly spread.
_SOME = 64


def rows(dataset: Any) -> str:
    """Return 16 hex digits of a data set of the datasets library, by its columns' names and bytes."""
    found = hashlib.sha256()
    table = dataset.data.table if hasattr(dataset.data, "table") else dataset.data
    for name in table.column_names:
        found.update(name.encode())
        for chunk in table.column(name).chunks:
            found.update(f"{chunk.type}{len(chunk)}{chunk.offset}".encode())
            for buffer in chunk.buffers():
                found.update(memoryview(buffer) if buffer is not None else b"none")
    return found.hexdigest()[:16]


def config(model: Any) -> str:
    """Return 16 hex digits of a model's configuration, but for where it came from."""
    value = model.config.to_dict()
    for name in ("_name_or_path", "transformers_version"):
        value.pop(name, None)
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def weights(model: Any, *, learning: bool = False) -> str:
    """Return 16 hex digits of the weights' names, shapes, types and some of their bits: of all, or of what learns."""

    found = hashlib.sha256()
    for name, weight in model.named_parameters():
        if learning and not weight.requires_grad:
            continue
        flat = weight.detach().reshape(-1)
        found.update(f"{name}{tuple(weight.shape)}{weight.dtype}".encode())
        if not flat.numel() or flat.device.type == "meta":
            continue
        found.update(_some(flat))
        # the scales of a weight of 4 bits are no weights, and no buffers
        scales = getattr(getattr(weight, "quant_state", None), "absmax", None)
        if scales is not None:
            found.update(_some(scales.reshape(-1)))
    return found.hexdigest()[:16]


def _some(flat: Any) -> bytes:
    """Return some numbers' bytes."""
    import torch

    places = torch.linspace(0, flat.numel() - 1, min(_SOME, flat.numel()), dtype=torch.float64).long()
    return bytes(flat[places.to(flat.device)].cpu().contiguous().view(torch.uint8).numpy().tobytes())
