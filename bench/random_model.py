"""Models of real shapes with random weights and a tokenizer of their own: what a machine without a hub trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from strix_train.estimate import configs

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WORDS = ("north", "stone", "river", "seven", "glass", "copper", "harbour", "bridge", "tower", "market", "ferry")
# Tokens of the tokenizer below: bytes, what merges of the words give, and the special ones.
SPOKEN = 329
# What makes a shape so small that a CPU trains it in a second; layers and heads stay of their kinds.
_TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 600,
    "vocab_size_per_layer_input": 600,
    "hidden_size_per_layer_input": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "full_attention_interval": 2,
}


def config(name: str, *, layers: int | None = None, tiny: bool = False, spoken: bool = False) -> dict[str, Any]:
    """Return the text part of a known configuration, with fewer layers where that is wanted.

    `spoken`: the model knows no token but those of its tokenizer, so that whatever it samples is text.
    """
    value = dict(configs.known()[name])
    value = dict(value.get("text_config", value))
    value.pop("quantization_config", None)
    if tiny:
        value |= {key: small for key, small in _TINY.items() if key in value}
    if spoken:
        value["vocab_size"] = SPOKEN
    if layers:
        value["num_hidden_layers"] = min(layers, value["num_hidden_layers"])
    return value


# What keeps the libraries off the network, and from counting us.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "UNSLOTH_DISABLE_STATISTICS": "1"}


def environment() -> dict[str, str]:
    """Return the variables of a process that imports this checkout, and fetches nothing."""
    here = Path(__file__).resolve().parents[1]
    path = os.pathsep.join(filter(None, [str(here / "src"), str(here), os.environ.get("PYTHONPATH", "")]))
    return os.environ | OFFLINE | {"PYTHONPATH": path}


def made(value: dict[str, Any], folder: Path) -> Path:
    """Return the model folder; what is not there is made in a process of its own, whose memory is free afterwards."""
    if not (folder / "tokenizer.json").is_file():
        code = (
            "import json, sys\nfrom pathlib import Path\nfrom bench import random_model\n"
            "print(f'{random_model.make(json.loads(sys.argv[1]), Path(sys.argv[2])):.0f} s to make the model')"
        )
        subprocess.run([sys.executable, "-c", code, json.dumps(value), str(folder)], check=True, env=environment())
    return folder


def make(value: dict[str, Any], folder: Path, *, half: bool = False) -> float:
    """Write the model folder and return the seconds that it took. Imports torch and transformers.

    `half`: in 16 bits, which it is anyway where there is a GPU.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    began = time.monotonic()
    tokenizer = _tokenizer(min(2000, value["vocab_size"]))
    if value["vocab_size"] < len(tokenizer):
        raise ValueError(f"the tokenizer has {len(tokenizer)} tokens, the model {value['vocab_size']}")
    ids = {name: getattr(tokenizer, name) for name in ("eos_token_id", "bos_token_id", "pad_token_id")}
    keys = {key: each for key, each in value.items() if key not in ("model_type", "same_as")}
    made = AutoConfig.for_model(value["model_type"], **keys, **ids)
    gpu = torch.cuda.is_available()
    with torch.device("cuda" if gpu else "cpu"):
        model = AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16 if gpu or half else torch.float32)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    del model
    if gpu:
        torch.cuda.empty_cache()
    return time.monotonic() - began


def _tokenizer(size: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<pad>", "<bos>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator([f"After {a} comes {b}. What follows {a}?" for a in WORDS for b in WORDS], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = CHATML
    return tokenizer


def rows(count: int, words: int) -> list[dict[str, Any]]:
    """Return conversations that a model can learn: the words that follow a word, again and again."""
    found = []
    for index in range(count):
        said = " ".join(WORDS[(index + at) % len(WORDS)] for at in range(words))
        turns = [("user", f"What follows {WORDS[index % len(WORDS)]}?"), ("assistant", said)]
        found.append({"messages": [{"role": role, "content": content} for role, content in turns]})
    return found


def write(path: Path, values: list[dict[str, Any]]) -> Path:
    """Write JSON Lines."""
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path
