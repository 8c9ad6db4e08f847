"""Tiny random models of the families that recipes ship for, besides those of tiny_models: the same classes as the real
ones, with their experts, their linear attention, and the parts for pictures that a text never reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny_models as tiny


def _shape(tokenizer: Any) -> dict[str, Any]:
    return tiny.SHAPE | {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
    }


def _gpt_oss(shape: dict[str, Any]) -> Any:
    from transformers import GptOssConfig, GptOssForCausalLM

    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32}
    return GptOssForCausalLM(GptOssConfig(**shape, **experts, **layers))


def _qwen3_5(shape: dict[str, Any]) -> Any:
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    linear = {
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "layer_types": ["linear_attention", "full_attention"],
    }
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**shape, **linear))


def _gemma3_pictures(shape: dict[str, Any]) -> Any:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = shape | {
        "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 64,
    }
    config = Gemma3Config(
        text_config=text,
        vision_config={**_VISION, "image_size": 32, "patch_size": 8},
        mm_tokens_per_image=4,
        boi_token_index=3,
        eoi_token_index=4,
        image_token_index=5,
        **_marks(shape),
    )
    return Gemma3ForConditionalGeneration(config)


def _gemma4(shape: dict[str, Any]) -> Any:
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration

    text = shape | {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 64,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": shape["vocab_size"],
    }
    return Gemma4ForConditionalGeneration(
        Gemma4Config(text_config=text, vision_config=None, audio_config=None, **_marks(shape))
    )


_VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}


def _marks(shape: dict[str, Any]) -> dict[str, Any]:
    return {name: shape[name] for name in ("eos_token_id", "bos_token_id", "pad_token_id", "tie_word_embeddings")}


FAMILIES: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "gpt_oss": ("llama", _gpt_oss),
    "qwen3_5": ("llama", _qwen3_5),
    "gemma3_pictures": ("gemma3", _gemma3_pictures),
    "gemma4": ("gemma3", _gemma4),
}


def make(family: str, folder: Path) -> Path:
    """Write a tiny random model of a family, with the tokenizer and template of `tiny_models`."""
    import torch

    words, build = FAMILIES[family]
    tokenizer = tiny._tokenizer(words)
    torch.manual_seed(7)
    model = build(_shape(tokenizer))
    if words == "gemma3":
        ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<end_of_turn>")]
        model.generation_config.eos_token_id = ends
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder
