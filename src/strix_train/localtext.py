"""A model's tokenizer and chat template from its folder alone, for `train check`: no torch, no transformers.

It gives the same text and the same tokens as the tokenizer that trains (tests/train compares the two).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from strix_train import template
from strix_train.encode import Span
from strix_train.names import ModelName


class LocalText:
    """Implements `encode.Text` on a folder's tokenizer.json."""

    def __init__(self, folder: Path, source: str | None) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        special = template.special_tokens(folder)
        self._template = template.ChatTemplate(source, special) if source else None
        self.has_template = source is not None
        bos = special.get("bos_token")
        begins = self._tokenizer.encode("a").tokens[:1]
        self.bos = bos if bos and begins == [bos] else ""
        self.eos = special.get("eos_token", "")
        added = self._tokenizer.get_added_tokens_decoder()
        self._ends = {index for index, token in added.items() if token.special}
        end = self._tokenizer.token_to_id(self.eos) if self.eos else None
        if end is not None:
            self._ends.add(end)

    def render(self, messages: Sequence[dict[str, Any]], *, answer_next: bool, tools: Any = None) -> str:
        """Return the conversation in the model's template; raises ValueError where the template refuses it."""
        if self._template is None:
            raise ValueError("there is no chat template")
        return self._template.render(messages, answer_next=answer_next, tools=tools)

    def tokens(self, text: str) -> tuple[list[int], list[Span]]:
        """Return ids and character spans of a text, adding nothing."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return found.ids, found.offsets

    def is_end(self, token: int) -> bool:
        """Whether a token ends a text, or is a special token."""
        return token in self._ends


def folder_of(model: ModelName) -> Path | None:
    """Return the folder of a model that is on this machine: its own, or its snapshot in the hub's cache."""
    if model.local:
        return Path(model.source) if Path(model.source).is_dir() else None
    cache = os.environ.get("HF_HUB_CACHE")
    home = os.environ.get("HF_HOME") or str(Path(os.environ.get("HOME") or "/") / ".cache" / "huggingface")
    held = (Path(cache) if cache else Path(home) / "hub") / f"models--{model.source.replace('/', '--')}"
    try:
        revision = (held / "refs" / "main").read_text(encoding="ascii").strip()
    except OSError:
        return None
    folder = held / "snapshots" / revision
    return folder if (folder / "config.json").is_file() else None


def of_folder(folder: Path, source: str | None) -> LocalText | None:
    """Return the text side of a model folder, or None where it, or the tokenizers library, has none."""
    if find_spec("tokenizers") is None or not (folder / "tokenizer.json").is_file():
        return None
    try:
        return LocalText(folder, source)
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for a broken file
        raise ValueError(f"{folder / 'tokenizer.json'}: cannot be read: {str(error)[:200]}") from None
