"""An adapter put into its model's weights, in the number format that the model's own files have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from strix_train.errors import TrainError
from strix_train.generate import Source, with_adapter
from strix_train.names import ModelName

# Libraries' names of number formats that hold a weight in a file of their own.
_PLAIN = ("float32", "float16", "bfloat16")


def load_for_merging(source: Source) -> tuple[Any, Any]:
    """Return the model with its adapter, in main memory, and its tokenizer. What was quantised is made whole first."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = source.base
    config = _config(base)
    quantized = config.get("quantization_config") or {}
    more: dict[str, Any] = {}
    if quantized.get("quant_method") == "mxfp4":
        from transformers import Mxfp4Config

        more["quantization_config"] = Mxfp4Config(dequantize=True)
    name = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    model = AutoModelForCausalLM.from_pretrained(
        base.source,
        dtype=getattr(torch, name) if name in _PLAIN else torch.bfloat16,
        device_map={"": "cpu"},
        local_files_only=base.local,
        **more,
    )
    if quantized and not more:
        model = model.dequantize()
    tokenizer = AutoTokenizer.from_pretrained(str(source.adapter or base.source), local_files_only=base.local)
    if source.adapter:
        model = with_adapter(model, source.adapter)
    return model.eval(), tokenizer


def merge(model: Any, tokenizer: Any, target: Path) -> None:
    """Write the model with its adapter merged in as a plain model folder; the one in memory is merged as well."""
    whole = model.merge_and_unload(safe_merge=True) if hasattr(model, "merge_and_unload") else model
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(whole.config, name):
            delattr(whole.config, name)
    try:
        whole.save_pretrained(str(target), safe_serialization=True)
    except (ValueError, NotImplementedError) as error:
        text = " ".join(str(error).split())[:200]
        raise TrainError(f"the merged model cannot be written: {text}", cure="take another --as") from error
    tokenizer.save_pretrained(str(target))


def copy_processor(base: ModelName, target: Path) -> None:
    """Copy what a model for pictures and text needs besides, so that the merged one is as whole as it was."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        path = Path(base.source) / name
        if base.local and path.is_file():
            shutil.copyfile(path, target / name)


def reload(folder: Path) -> tuple[Any, Any]:
    """Return a merged model as a stranger would load it."""
    return load_for_merging(Source(ModelName(folder.name, str(folder), True), None))


def size_of(source: Source) -> int:
    """Return the bytes of the model's weights in 16 bits, from its files; 0 where they are not here yet."""
    folder = Path(source.base.source)
    if not source.base.local:
        return 0
    files = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return files if _config(source.base).get("dtype", "bfloat16") != "float32" else files // 2


def _config(base: ModelName) -> dict[str, Any]:
    path = Path(base.source) / "config.json"
    if not base.local:
        from huggingface_hub import hf_hub_download

        path = Path(hf_hub_download(base.source, "config.json"))
    value = json.loads(path.read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else {}
