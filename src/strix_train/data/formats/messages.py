"""{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}, and ShareGPT's spelling."""

from __future__ import annotations

from typing import Any

from strix_train.data.faults import Faults, Record
from strix_train.data.formats.beside import conversation_of
from strix_train.data.formats.talk import OPENAI, SHAREGPT, Spelling, Wishes, any_learned, follows_order, read_turns
from strix_train.data.rows import Conversation

KEYS = ("messages", "conversations")


def claims(value: dict[str, Any]) -> bool:
    """Whether the object holds messages with role and content."""
    return ("messages" in value and not _shared(value)) or ("conversations" in value and _said_by(value, "role"))


def claims_sharegpt(value: dict[str, Any]) -> bool:
    """Whether the object holds messages with from and value."""
    return _shared(value) or ("conversations" in value and not _said_by(value, "role"))


def _shared(value: dict[str, Any]) -> bool:
    return any(key in value and _said_by(value, "from") for key in KEYS)


def _said_by(value: dict[str, Any], name: str) -> bool:
    found = value.get("messages", value.get("conversations"))
    return isinstance(found, list) and bool(found) and isinstance(found[0], dict) and name in found[0]


def row(record: Record, faults: Faults, wishes: Wishes) -> Conversation | None:
    """Return the conversation of a row; every assistant turn is learned."""
    return conversation(record, faults, wishes, OPENAI)


def row_sharegpt(record: Record, faults: Faults, wishes: Wishes) -> Conversation | None:
    """Return the conversation of a row in ShareGPT's spelling, its system message often beside the turns."""
    return conversation(record, faults, wishes, SHAREGPT)


def conversation(
    record: Record, faults: Faults, wishes: Wishes, spelling: Spelling, *, answered: bool = True
) -> Conversation | None:
    """Return the conversation under the key that the row has, or None with the fault noted."""
    value = record.value
    key = KEYS[0] if KEYS[0] in value else KEYS[1]
    turns = read_turns(record, (key,), faults, wishes, spelling)
    if turns is None or not follows_order(turns, record, (key,), faults, spelling, answered=answered):
        return None
    if answered and not turns[-1].learned and not any_learned(turns, record, (key,), faults):
        return None
    return conversation_of(turns, record, faults, wishes)
