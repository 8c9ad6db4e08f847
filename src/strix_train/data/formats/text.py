"""{"text": "…"}, and files of plain text: all of it is learned."""

from __future__ import annotations

from typing import Any

from strix_train.data.faults import Faults, Record
from strix_train.data.formats.prompt_completion import has
from strix_train.data.formats.talk import Wishes, words
from strix_train.data.rows import Document

KEYS = ("text",)


def claims(value: dict[str, Any]) -> bool:
    """Whether the object has the format's key."""
    return "text" in value


def row(record: Record, faults: Faults, wishes: Wishes) -> Document | None:
    """Return the text of an object."""
    if not has(record, KEYS, faults):
        return None
    text = words(record.value["text"], "'text'", record, ("text",), faults)
    return None if text is None else Document(text, record.place(), not getattr(record, "more", False))
