"""Tiny random models of real families, made on the spot: a byte-level tokenizer, a template, two layers."""

from __future__ import annotations

import json
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
FAMILIES = ("llama", "qwen3", "gemma3")
WORDS = ("red", "green", "blue", "north", "south", "river", "stone", "glass", "seven", "eleven")
SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    # large enough for the frozen, random output layer to tell tokens apart
    "initializer_range": 0.2,
}


def rows(count: int = 24) -> list[dict[str, Any]]:
    """Return rows that a tiny model can learn: a word asked for, and the word that follows it in WORDS."""
    made = []
    for index in range(count):
        word, after = WORDS[index % len(WORDS)], WORDS[(index + 1) % len(WORDS)]
        question = ("What follows {}?", "Say what comes after {}.", "After {}, what?")[index // len(WORDS) % 3]
        made.append(
            {
                "messages": [
                    {"role": "user", "content": question.format(word)},
                    {"role": "assistant", "content": f"After {word} comes {after}."},
                ]
            }
        )
    return made


def write_rows(path: Path, values: list[dict[str, Any]]) -> Path:
    """Write JSON Lines."""
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def write_data(folder: Path) -> None:
    """Write the data files of the scenarios."""
    write_rows(folder / "rows.jsonl", rows(24))
    write_rows(folder / "eval.jsonl", rows(30)[24:])
    long = rows(8)
    long[0]["messages"][0]["content"] = "What follows red? " * 40
    long[1]["messages"][1]["content"] = "After green comes blue. " * 40
    write_rows(folder / "long.jsonl", long)
    pairs = [{"prompt": f"{a} ", "completion": b} for a, b in pairwise(WORDS)]
    write_rows(folder / "pairs.jsonl", pairs)


def spoil(models: Path) -> None:
    """Make models that cannot be trained: a weight that is no number, no template, a file that is cut off."""
    import torch
    from safetensors.torch import load_file, save_file

    for name in ("broken", "bare", "cut"):
        shutil.copytree(models / "llama", models / name)
    state = load_file(models / "broken" / "model.safetensors")
    state["model.layers.1.mlp.down_proj.weight"][0, 0] = torch.nan
    save_file(state, models / "broken" / "model.safetensors", metadata={"format": "pt"})
    (models / "bare" / "chat_template.jinja").unlink()
    os.truncate(models / "cut" / "model.safetensors", 1000)


def make(family: str, folder: Path, **other: Any) -> Path:
    """Write a tiny random model and its tokenizer as a model folder. `other`: sizes that are not as in SHAPE."""
    import torch
    from transformers import (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        LlamaConfig,
        LlamaForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    tokenizer = _tokenizer(family)
    shape = SHAPE | {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
        **other,
    }
    kinds: dict[str, Any] = {
        "llama": (LlamaConfig, LlamaForCausalLM, {}),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
        "gemma3": (
            Gemma3TextConfig,
            Gemma3ForCausalLM,
            {"query_pre_attn_scalar": 16, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64},
        ),
    }
    config, model, more = kinds[family]
    torch.manual_seed(7)
    made = model(config(**shape, **more))
    if family == "gemma3":
        made.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<end_of_turn>")]
    made.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


def _tokenizer(family: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    turns = ["<start_of_turn>", "<end_of_turn>"] if family == "gemma3" else ["<|im_start|>", "<|im_end|>"]
    special = ["<pad>", "<bos>", "<eos>", *turns]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=520, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator([json.dumps(row) for row in rows(60)], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>" if family == "gemma3" else "<|im_end|>",
        additional_special_tokens=turns,
    )
    tokenizer.chat_template = GEMMA if family == "gemma3" else CHATML
    return tokenizer
