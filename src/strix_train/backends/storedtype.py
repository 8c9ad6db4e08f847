"""The type of the weights in a model's files, which config.json need not know, and what suffers from loading in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strix_train import tensorfiles
from strix_train.names import ModelName


def of_files(model: ModelName) -> Any:
    """Return torch's type that all weights of a model's safetensors files have; None where it is not one floating type.

    Files of the hub come into the cache, as they do when they are loaded.
    """
    import torch

    known = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
    found = {name for file in _files(model) for name in _types(file)}
    return known.get(found.pop()) if len(found) == 1 else None


def _files(model: ModelName) -> Iterator[Path]:
    if model.local:
        yield from sorted(Path(model.source).glob("*.safetensors"))
        return
    from transformers.utils import cached_file

    def fetched(name: str) -> str | None:
        path: str | None = cached_file(model.source, name, _raise_exceptions_for_missing_entries=False)
        return path

    index = fetched("model.safetensors.index.json")
    names = json.loads(Path(index).read_text("utf-8"))["weight_map"].values() if index else ["model.safetensors"]
    for name in sorted(set(names)):
        path = fetched(name)
        if path:
            yield Path(path)


def _types(file: Path) -> set[str]:
    return {str(entry["dtype"]) for entry in tensorfiles.entries(file)}


def rounds(model: Any) -> bool:
    """Whether numbers that are in no file, as Gemma's scale of embeddings, were made in the type of the weights."""
    return any(
        buffer is not None and name in module._non_persistent_buffers_set and buffer.dtype == model.dtype
        for module in model.modules()
        for name, buffer in module._buffers.items()
    )
