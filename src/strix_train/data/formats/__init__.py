"""The row formats: what an object must look like to be one, which methods learn from it, and the row that it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strix_train.data.faults import Faults, Record
from strix_train.data.formats import alpaca, messages, preference, prompt_completion, prompts, rated, text
from strix_train.data.formats.talk import Wishes
from strix_train.data.rows import Row


@dataclass(frozen=True, slots=True)
class Format:
    """A row format. `claims`: whether an object looks like it. `row`: the row, or None with the fault noted.

    `keys`: an object with all of them is one where the recipe asks for the format, whatever else it looks like.
    """

    name: str
    methods: tuple[str, ...]
    claims: Callable[[dict[str, Any]], bool]
    row: Callable[[Record, Faults, Wishes], Row | None]
    keys: tuple[str, ...] = ()

    def takes(self, value: dict[str, Any], *, asked: bool) -> bool:
        """Whether an object is a row of the format. `asked`: the recipe asks for the format."""
        return self.claims(value) or (asked and bool(self.keys) and all(key in value for key in self.keys))


_PAIRS = ("dpo", "orpo", "reward", "kto")
# In the order in which the first row is tried.
FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format("preference", _PAIRS, preference.claims, preference.row, preference.KEYS),
        Format("rated", ("kto",), rated.claims, rated.row),
        Format("messages", ("sft",), messages.claims, messages.row),
        Format("sharegpt", ("sft",), messages.claims_sharegpt, messages.row_sharegpt),
        Format("prompt-completion", ("sft",), prompt_completion.claims, prompt_completion.row, prompt_completion.KEYS),
        Format("alpaca", ("sft",), alpaca.claims, alpaca.row, alpaca.KEYS),
        Format("text", ("cpt",), text.claims, text.row, text.KEYS),
        Format("prompts", ("grpo",), prompts.claims, prompts.row),
    )
}


def learned_by(method: str) -> tuple[Format, ...]:
    """Return the formats that a method learns from."""
    return tuple(form for form in FORMATS.values() if method in form.methods)
