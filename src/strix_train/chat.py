"""`train chat`: a conversation in the terminal with a trained run, or with a plain model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from strix_train.answers import stop_tokens
from strix_train.errors import InputError, Problem
from strix_train.tokenizer import Adapted

HELP = "/new begins another conversation, /end or Ctrl-D ends it, Ctrl-C stops an answer"


class Chat:
    """A conversation. `most`: tokens that the model takes; the oldest turns are left out where they no longer fit."""

    def __init__(
        self, model: Any, tokenizer: Any, *, system: str | None, max_new_tokens: int, temperature: float
    ) -> None:
        self.model, self.stops = model, stop_tokens(model, tokenizer)
        self.text = Adapted(tokenizer, self.stops)
        if not self.text.has_template:
            cure = "ask it with `train generate`, or train it with data.template: simple"
            raise InputError(Problem("the model has no chat template, so it knows no turns", cure=cure))
        self.system, self.max_new_tokens, self.temperature = system, max_new_tokens, temperature
        config = model.config.get_text_config()
        self.most = int(getattr(config, "max_position_embeddings", 0) or 1 << 20)
        self.text.question("Hello", system)  # what the template refuses is said before anything is typed
        self.turns: list[dict[str, str]] = []

    def new(self) -> None:
        """Forget what was said."""
        self.turns = []

    def prompt(self) -> list[int]:
        """Return the tokens of what was said, as much of it as leaves room for an answer."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        while True:
            found = self.text.tokens(self.text.talk([*head, *self.turns]))[0]
            if len(found) + self.max_new_tokens <= self.most or len(self.turns) < 3:
                return found
            self.turns = self.turns[2:]

    def say(self, words: str, write: Callable[[str], None]) -> str:
        """Return the answer to `words`; `write` gets its pieces as they come. An interrupted turn is forgotten."""
        import torch

        self.turns.append({"role": "user", "content": words})
        ids = torch.tensor([self.prompt()], device=self.model.device)
        pad = self.text.tokenizer.pad_token_id
        sampling: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if self.temperature > 0:
            sampling = {"do_sample": True, "temperature": self.temperature}
        pieces = _Pieces(self.text.tokenizer, write)
        try:
            with torch.no_grad():
                self.model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=self.max_new_tokens,
                    pad_token_id=self.stops[0] if pad is None and self.stops else (pad or 0),
                    eos_token_id=self.stops or None,
                    use_cache=True,
                    streamer=pieces,
                    **sampling,
                )
        except KeyboardInterrupt:
            self.turns.pop()
            raise
        self.turns.append({"role": "assistant", "content": pieces.said})
        return pieces.said


class _Pieces:
    """A streamer for transformers: writes text as soon as it is certain, special tokens left out."""

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        self.tokenizer, self.write = tokenizer, write
        self.said, self._ids, self._prompt = "", list[int](), True

    def put(self, value: Any) -> None:
        """Take the prompt, then token after token."""
        if self._prompt:
            self._prompt = False
            return
        self._ids += value.reshape(-1).tolist()
        self._show(self.tokenizer.decode(self._ids, skip_special_tokens=True))

    def _show(self, text: str) -> None:
        # the beginning of a character of several tokens is shown with its end
        if text.endswith("\ufffd"):
            return
        new = text[len(self.said) :] if text.startswith(self.said) else ""
        if new:
            self.write(new if self.said else new.lstrip())
            self.said = text

    def end(self) -> None:
        """Be done."""
        self.said = self.said.strip()


def lines(asked: str) -> Iterator[str]:
    """Yield what is typed until the end of the input; `asked` is shown where a person types. Raises InputError."""
    while True:
        if sys.stdin.isatty():
            sys.stdout.write(asked)
            sys.stdout.flush()
        try:
            line = sys.stdin.readline()
            line.encode()  # in some locales, what cannot be read becomes halves of characters
        except UnicodeError:
            what = f"what was typed is no {sys.stdin.encoding.upper()}"
            raise InputError(
                Problem(what, cure="let the terminal, or the file that is read, have that encoding")
            ) from None
        if not line:
            return
        yield line.strip()


def converse(chat: Chat) -> None:
    """Talk until the input ends."""

    def write(piece: str) -> None:
        sys.stdout.write(piece)
        sys.stdout.flush()

    for words in lines("> "):
        if words in ("/end", "/bye", "/exit", "/quit"):
            return
        if words == "/new":
            chat.new()
        elif words.startswith("/"):
            write(HELP + "\n")
        elif words:
            try:
                chat.say(words, write)
            except KeyboardInterrupt:
                write(" …")
            write("\n")
