"""What a cell of a table says: a text, or the messages and tools that are written in it as JSON."""

from __future__ import annotations

import json
import re
from typing import Any

from strix_train.data.formats.talk import ROLES, SHAREGPT
from strix_train.data.jsontext import DECODER

# Columns that hold structure, whatever it looks like. Under other names an answer may be JSON, and stays a text.
STRUCTURED = frozenset({"messages", "conversations", "tools", "tool_calls", "history"})
BEGINNINGS = ("[", "{")
_ROLES = frozenset(ROLES) | SHAREGPT.roles.keys()
# How Python writes a list of messages, which is what pandas' to_csv leaves in a cell.
_PYTHON = re.compile(r"\[?\s*\{\s*'")
_HALVES = (("'role': ", "'content': "), ("'from': ", "'value': "))


def value_of(cell: str, *, structured: bool) -> Any:
    """Return the structure of a cell that begins like one, where it is meant as one, or its text.

    Raises ValueError for messages as Python writes them: they are no JSON, and as a text nobody means them.
    """
    try:
        found = DECODER.decode(cell)
    except (json.JSONDecodeError, ValueError, RecursionError):
        if _is_python(cell, structured=structured):
            raise ValueError("holds a list as Python writes it, which is not JSON") from None
        return cell
    return found if structured or _is_talk(found) else cell


def _is_talk(value: Any) -> bool:
    """Whether a value is a message or a list of them, and not the JSON that a model is to write."""
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, dict) and (_is_said(first, "role", "content") or _is_said(first, "from", "value"))


def _is_said(message: dict[str, Any], by: str, words: str) -> bool:
    role = message.get(by)
    return isinstance(role, str) and (words in message or role in _ROLES)


def _is_python(cell: str, *, structured: bool) -> bool:
    if not _PYTHON.match(cell) or not cell.rstrip().endswith(("]", "}")):
        return False
    return structured or any(by in cell and words in cell for by, words in _HALVES)
