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


class Digest:
    """Of tensors: their names, shapes, types and some of their bits."""

    def __init__(self) -> None:
        self._found = hashlib.sha256()

    def add(self, name: str, tensor: Any) -> None:
        """Look at a tensor; of one that holds no numbers yet, at its name and shape alone."""
        import torch

        flat = tensor.detach().reshape(-1)
        self._found.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        if flat.numel() and flat.device.type != "meta":
            places = torch.linspace(0, flat.numel() - 1, min(_SOME, flat.numel()), dtype=torch.float64).long()
            some = flat[places.to(flat.device)].cpu().contiguous()
            self._found.update(some.view(torch.uint8).numpy().tobytes())

    @property
    def text(self) -> str:
        """16 hex digits."""
        return self._found.hexdigest()[:16]


def weights(model: Any, *, learning: bool = False) -> str:
    """Return 16 hex digits of all weights, or of those that learn."""
    found = Digest()
    for name, weight in model.named_parameters():
        if weight.requires_grad or not learning:
            found.add(name, weight)
    return found.text
