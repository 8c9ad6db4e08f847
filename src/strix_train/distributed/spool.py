"""Whole tensors of a model in pieces, in files that have no name: whoever writes them needs no memory for all of them.

A result and a checkpoint hold whole tensors, and process 0 writes them. A model that fits on no single machine does not
fit there either, so what is gathered goes onto the disk that will hold it anyway, and from there into its file.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

# Smaller ones stay in memory: an adapter has hundreds of them.
_LEAST = 2**20


def is_large(tensor: Any) -> bool:
    """Whether a tensor would be kept in a file."""
    return int(tensor.numel()) * int(tensor.element_size()) >= _LEAST


def kept(tensor: Any, folder: Path) -> Any:
    """Return a copy of a tensor whose numbers lie in a file of `folder`, which goes with it.

    `folder` is made where it is not there. Where its file system maps no files (some shared folders of virtual
    machines), the copy lies in memory. Raises OSError where the disk is full, before anything is written.
    """
    import torch

    if not is_large(tensor):
        return tensor.cpu()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        # a mapped page for which there is no room would end this process by a signal
        os.posix_fallocate(file.fileno(), 0, tensor.numel() * tensor.element_size())
        path = f"/proc/self/fd/{file.fileno()}"
        try:
            mapped = torch.from_file(path, shared=True, size=tensor.numel(), dtype=tensor.dtype)
        except RuntimeError:
            return tensor.cpu()
    mapped.copy_(tensor.reshape(-1))
    return mapped.view(tensor.shape)
