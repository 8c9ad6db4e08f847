"""A trained model as one folder: an adapter put into its weights, which have the number format of the base model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from strix_train.errors import InputError, TrainError
from strix_train.export import contents
from strix_train.generate import Source, base_of_run, with_adapter
from strix_train.names import ModelName

# Libraries' names of number formats that hold a weight in a file of their own, and the bytes of one.
_PLAIN = {"float32": 4, "float16": 2, "bfloat16": 2}


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
    model = AutoModelForCausalLM.from_pretrained(
        base.source,
        dtype=getattr(torch, format_of(source)),
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
    untie(model)
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


def untie(model: Any) -> None:
    """Give the first and the last layer a weight each where they share one and an adapter learned on one of them.

    Merged into a shared weight, what was learned for one use of it would change the other one as well.
    """
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    plain = [getattr(end, "base_layer", end) for end in ends]
    if None in plain or ends == plain or plain[0].weight is not plain[1].weight:
        return
    import torch

    plain[1].weight = torch.nn.Parameter(plain[1].weight.detach().clone(), requires_grad=False)
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False


def copy_processor(base: ModelName, target: Path) -> None:
    """Copy what a model for pictures and text needs besides, so that the merged one is as whole as it was."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        path = Path(base.source) / name
        if base.local and path.is_file():
            shutil.copyfile(path, target / name)


def reload(folder: Path) -> tuple[Any, Any]:
    """Return a merged model as a stranger would load it."""
    return load_for_merging(Source(ModelName(folder.name, str(folder), True), None))


def format_of(source: Source) -> str:
    """Return the name of the number format in which a merged model is written: that of the model it was made from.

    A model that was trained whole has the format that its weights learned in, which takes twice the room and says no
    more. It keeps that where the model that it was trained from has gone.
    """
    found = _format(_config(source.base))
    if source.adapter is None and source.run:
        try:
            return _format(_config(base_of_run(source.run)))
        except (InputError, OSError, ValueError):
            return found
    return found


def _format(config: dict[str, Any]) -> str:
    name = str(config.get("dtype") or config.get("torch_dtype"))
    return name if name in _PLAIN else "bfloat16"


def size_of(source: Source) -> tuple[int, int]:
    """Return the number of the model's weights, and the bytes that they are written in.

    By its files; zeros where they are not here yet.
    """
    if not source.base.local:
        return 0, 0
    weights = sum(contents.weights(path) for path in Path(source.base.source).glob("*.safetensors"))
    return weights, weights * _PLAIN[format_of(source)]


def _config(base: ModelName) -> dict[str, Any]:
    path = Path(base.source) / "config.json"
    if not base.local:
        from huggingface_hub import hf_hub_download

        path = Path(hf_hub_download(base.source, "config.json"))
    value = json.loads(path.read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else {}
