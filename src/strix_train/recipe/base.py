"""What every part of a recipe is made of: strict models, texts, numbers, and sections written as one word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Text = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
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


class Strict(BaseModel):
    """Frozen, no coercion, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def widened(section: str, *, of_list: str = "", kind: str = "") -> Callable[[Any], Any]:
    """Return the function that spells a section out: one word, a list, or keys without their `kind`."""

    def widen(value: Any) -> Any:
        if isinstance(value, str):
            return {SHORT[section]: value}
        if of_list and isinstance(value, list):
            return {of_list: value}
        if kind and isinstance(value, dict) and "kind" not in value:
            return {"kind": kind, **value}
        return value

    return widen


def as_list(value: Any) -> Any:
    """Let a list of one be written without its brackets."""
    return [value] if isinstance(value, (str, dict)) else value
