"""{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}, and ShareGPT's spelling."""

from __future__ import annotations

from typing import Any, Literal

from strix_train.data.faults import Faults, Record
from strix_train.data.formats.talk import OPENAI, SHAREGPT, Spelling, Wishes, any_learned, follows_order, read_turns
from strix_train.data.jsontext import kind_of
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
    """Return the conversation of a row in ShareGPT's spelling, with its separate system message."""
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
    tools = read_tools(record, faults) if "tools" in value else None
    return None if tools is False else Conversation(tuple(turns), record.place(), tools or None)


def read_tools(record: Record, faults: Faults) -> tuple[Any, ...] | Literal[False] | None:
    """Return the descriptions of tools of a row, None without any, or False with the fault noted."""
    tools = record.value["tools"]
    if isinstance(tools, str):
        from strix_train.data.jsontext import DECODER

        try:
            tools = DECODER.decode(tools) if tools.strip() else None
        except ValueError:
            faults.of(record, ("tools",), "'tools' is a text that is not JSON", "write a list of descriptions")
            return False
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        what = f"'tools' is {kind_of(tools)}" + (" of other things than objects" if isinstance(tools, list) else "")
        faults.of(record, ("tools",), what, "write a list of descriptions")
        return False
    return tuple(tools)
