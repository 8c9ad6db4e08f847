"""What every part of a recipe is made of: strict models, texts, numbers, and sections written as one word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from strix_train.pathwords import NAME, PATH, UNEXPANDED, is_unexpanded, longest, size

Text = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


def _possible(value: str) -> str:
    if longest(value) > NAME or size(value) > PATH:
        raise ValueError(
            f"a name of {longest(value)} bytes is that of no file; write a path, and put what it holds there"
        )
    return value


def unexpanded(value: str) -> str:
    """Refuse what a shell would replace and a recipe does not."""
    if is_unexpanded(value):
        raise ValueError(f"{UNEXPANDED}; write the path")
    return value


# What may be a file, a folder, or a name at the hub.
Name = Annotated[Text, AfterValidator(_possible)]
Finite = Annotated[float, Field(allow_inf_nan=False)]

# The key that a section means when it is written as one word: `data: rows.jsonl` is `data: {train: rows.jsonl}`.
SHORT: dict[str, str] = {
    "data": "train",
    "method": "kind",
    "adapter": "kind",
    "strategy": "kind",
    "questions": "file",
    "export": "to",
}

# And the key that it means when it is written as a list.
LISTED: dict[str, str] = {"data": "train", "questions": "ask", "export": "to"}


class Strict(BaseModel):
    """Frozen, no coercion, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def widened(section: str, *, kind: str = "") -> Callable[[Any], Any]:
    """Return the function that spells a section out: one word, a list, or keys without their `kind`."""

    def widen(value: Any) -> Any:
        if isinstance(value, str):
            return {SHORT[section]: value}
        if section in LISTED and isinstance(value, list):
            return {LISTED[section]: value}
        if kind and isinstance(value, dict) and "kind" not in value:
            return {"kind": kind, **value}
        return value

    return widen


def as_list(value: Any) -> Any:
    """Let a list of one be written without its brackets."""
    return [value] if isinstance(value, (str, dict)) else value
