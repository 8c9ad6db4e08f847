"""The tokenizer that transformers makes of a GGUF file, put right by what the file says.

transformers 5.17 takes the end of a turn for another token, and writes a byte-level tokenizer as one of pieces: its
own reader does not mind, while llama.cpp's converter then makes a file that reads no text at all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_SPECIAL = ("bos", "eos", "unknown", "padding")
_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
# What `tokenizer.ggml.token_type` calls a token that steers, and that is in no text.
_CONTROL = 3


def mended(tokenizer: Any, source: Path) -> Any:
    """Return the tokenizer with the special tokens of the file, and of the kind that the file has."""
    from transformers import PreTrainedTokenizerFast

    facts = read(source)
    tokens: list[str] = facts["tokens"]
    special = {_NAMES[name]: tokens[facts[name]] for name in _SPECIAL if facts.get(name) is not None}
    inner = tokenizer.backend_tokenizer
    if facts["model"] == "gpt2":
        inner = _byte_level(inner)
    known = {added.content for added in inner.get_added_tokens_decoder().values()}
    steering = [token for token, kind in zip(tokens, facts["types"], strict=False) if kind == _CONTROL]
    from tokenizers import AddedToken

    inner.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in steering if token not in known]
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        clean_up_tokenization_spaces=False,
        model_max_length=facts["length"] or tokenizer.model_max_length,
        **special,
    )
    made.chat_template = tokenizer.chat_template
    return made


def _byte_level(inner: Any) -> Any:
    """Return a tokenizer whose pieces are bytes written as letters: nothing falls back, nothing is unknown."""
    from tokenizers import Tokenizer

    value = json.loads(inner.to_str())
    value["model"] |= {"byte_fallback": False, "fuse_unk": False, "unk_token": None}
    value["decoder"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return Tokenizer.from_str(json.dumps(value))


def read(source: Path) -> dict[str, Any]:
    """Return what a GGUF file says: the tokenizer's model, tokens, types and special ids; the context's length."""
    from gguf import GGUFReader

    fields = GGUFReader(str(source)).fields

    def value(name: str) -> Any:
        return fields[name].contents() if name in fields else None

    architecture = value("general.architecture")
    found = {name: value(f"tokenizer.ggml.{name}_token_id") for name in _SPECIAL}
    return found | {
        "model": value("tokenizer.ggml.model"),
        "tokens": value("tokenizer.ggml.tokens") or [],
        "types": value("tokenizer.ggml.token_type") or [],
        "length": value(f"{architecture}.context_length"),
    }
