"""A Hugging Face tokenizer as `encode` wants it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strix_train.encode import Span
from strix_train.errors import InputError, Problem


class Adapted:
    """Implements `encode.Text` on a fast tokenizer, or on the tokenizer inside a processor."""

    def __init__(self, tokenizer: Any, stops: Sequence[int] = ()) -> None:
        self.tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        if not self.tokenizer.is_fast:
            raise InputError(
                "this model has only a slow tokenizer, which cannot tell where a token stands in the text",
                cure="add its tokenizer.json to the model folder",
            )
        # a tokenizer.json may bring a length to cut at, or to fill up to
        self._plain = self.tokenizer.backend_tokenizer
        self._plain.no_truncation()
        self._plain.no_padding()
        self.has_template = bool(self.tokenizer.chat_template)
        begins = self.tokenizer("a")["input_ids"][:1] == [self.tokenizer.bos_token_id]
        self.bos = str(self.tokenizer.bos_token) if begins else ""
        self.eos = self.tokenizer.eos_token or ""
        self._ends = {*stops, self.tokenizer.eos_token_id} - {None}
        self._special = set(self.tokenizer.all_special_ids) | {
            index for index, token in self.tokenizer.added_tokens_decoder.items() if token.special
        }

    def render(self, messages: Sequence[dict[str, Any]], *, answer_next: bool, tools: Any = None) -> str:
        """Return the conversation in the model's template; raises ValueError where the template refuses it."""
        from jinja2 import TemplateError

        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), tools=tools, tokenize=False, add_generation_prompt=answer_next
            )
        except (TemplateError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise ValueError(str(error).splitlines()[0] if str(error) else type(error).__name__) from error
        return str(text)

    def tokens(self, text: str) -> tuple[list[int], list[Span]]:
        """Return ids and character spans of a text, adding nothing."""
        found = self._plain.encode(text, add_special_tokens=False)
        return found.ids, found.offsets

    def is_end(self, token: int) -> bool:
        """Whether the model stops at this token, or it is a special token that ends a turn."""
        return token in self._ends or token in self._special

    @property
    def pad(self) -> int:
        """The token that fills rows up: its own, or the one that ends a text."""
        found = self.tokenizer.pad_token_id
        return int(self.tokenizer.eos_token_id if found is None else found)

    def question(self, prompt: str, system: str | None = None) -> str:
        """Return the text that makes the model answer `prompt`. Raises InputError where the template refuses it."""
        if not self.has_template:
            return self.bos + (f"{system}\n\n" if system else "") + prompt
        messages = [{"role": "system", "content": system}] if system else []
        return self.talk([*messages, {"role": "user", "content": prompt}])

    def talk(self, messages: Sequence[dict[str, Any]]) -> str:
        """Return the text that makes the model say what comes next. Raises InputError where the template refuses it."""
        try:
            return self.render(messages, answer_next=True)
        except ValueError as error:
            begins = messages[0]["role"] == "system"
            what = f"a system message before {messages[1]['content'][:40]!r}" if begins else "what is asked"
            cure = "write it in front of the question instead" if begins else "take a model with another template"
            raise InputError(Problem(f"the model's chat template refuses {what}: {error}", cure=cure)) from None
