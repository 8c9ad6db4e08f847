"""The place of a value inside a text of JSON, found again only when there is a fault to tell."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def column(text: str, keys: Sequence[str | int]) -> int:
    """Return the 1-based column of the value under `keys` in a text of one line; see `offset`."""
    return offset(text, keys) + 1


def excerpt(text: str, position: int) -> str:
    """Return the text around a position, on one line: some 30 characters before it and 60 behind."""
    start, end = max(0, position - 30), position + 60
    piece = "".join(
        " " if character.isspace() else character
        for character in text[start:end]
        if character.isprintable() or character.isspace()
    )
    return f"{'…' if start else ''}{piece}{'…' if end < len(text) else ''}"


def offset(text: str, keys: Sequence[str | int]) -> int:
    """Return where the value under `keys` begins, or the innermost value that exists.

    `text` is one valid JSON value. Keys are walked from the outside in.
    """
    position = _skip(text, 0)
    for key in keys:
        inner = _member(text, position, key) if isinstance(key, str) else _item(text, position, key)
        if inner is None:
            break
        position = inner
    return position


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _after(text: str, position: int) -> int:
    """Return the position behind the value at `position` and the spaces after it."""
    return _skip(text, _DECODER.raw_decode(text, position)[1])


def _member(text: str, position: int, key: str) -> int | None:
    if text[position : position + 1] != "{":
        return None
    found = None
    position = _skip(text, position + 1)
    while text[position] != "}":
        name, end = _DECODER.raw_decode(text, position)
        value = _skip(text, _skip(text, end) + 1)
        if name == key:
            found = value  # the last of two equal keys is the one that json.loads keeps
        position = _after(text, value)
        if text[position] == ",":
            position = _skip(text, position + 1)
    return found


def _item(text: str, position: int, index: int) -> int | None:
    if text[position : position + 1] != "[":
        return None
    position = _skip(text, position + 1)
    while text[position] != "]":
        if index == 0:
            return position
        index -= 1
        position = _after(text, position)
        if text[position] == ",":
            position = _skip(text, position + 1)
    return None
