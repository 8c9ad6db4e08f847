"""A JSON Lines file read as a stream: one object a line, every fault with its line and column.

No data library is involved, so a fault is told before anything slow is loaded, and in the file's own terms.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_train.errors import InputError, Place, Problem, at

SHOWN = 20
MAX_LINE = 32 << 20


class Faults:
    """Collects problems; stops the reading when there are many, and raises them together."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, message: str, place: Place, cure: str = "") -> None:
        """Note one fault. Raises InputError when SHOWN of them have been seen."""
        self.problems.append(Problem(message, place, cure))
        if len(self.problems) >= SHOWN:
            self.problems.append(Problem(f"stopped looking after {SHOWN} faults", at(place.source)))
            raise InputError(self.problems)

    def settle(self) -> None:
        """Raise InputError if any fault was noted."""
        if self.problems:
            raise InputError(self.problems)


@dataclass(frozen=True, slots=True)
class Line:
    """One object of the file, its 1-based line, and the text it was read from."""

    value: dict[str, Any]
    text: str
    path: Path
    number: int

    def place(self, *keys: str | int) -> Place:
        """Return the place of a value inside the line."""
        from strix_train.data.locate import column

        return at(self.path, self.number, column(self.text, keys))


def read(path: Path, faults: Faults) -> Iterator[Line]:
    """Yield the objects of the file; faults of single lines are noted and skipped. Raises InputError."""
    try:
        stream = path.open("rb")
    except OSError as error:
        raise InputError(Problem(f"cannot be read: {error.strerror}", at(path))) from None
    with stream:
        number = 0
        empty = True
        while raw := stream.readline(MAX_LINE):
            number += 1
            if len(raw) == MAX_LINE:
                raise InputError(Problem("is longer than 32 MiB", at(path, number), "one row is one line"))
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            text = _decoded(raw, path, number, faults)
            if text is None or not text.strip():
                continue
            empty = False
            value = _parsed(text, path, number, faults)
            if value is not None:
                yield Line(value, text, path, number)
    if empty and not faults.problems:
        faults.add("holds no rows", at(path), 'write one JSON object a line, like {"messages": [...]}')


def _decoded(raw: bytes, path: Path, number: int, faults: Faults) -> str | None:
    try:
        return raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        what = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or raw.count(0) > len(raw) // 4:
            raise InputError(Problem("is UTF-16", at(path, number), "save the file as UTF-8")) from None
        faults.add(what, at(path, number, error.start + 1), "save the file as UTF-8")
        return None


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _parsed(text: str, path: Path, number: int, faults: Faults) -> dict[str, Any] | None:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        place = at(path, number, error.colno)
        if number == 1 and text.strip() in ("[", "{"):
            raise InputError(
                Problem("is one JSON document over many lines", place, "write one JSON object a line (JSON Lines)")
            ) from None
        faults.add(f"is not valid JSON: {error.msg} {_around(text, error.pos)}", place, _cure(text, error))
        return None
    except RecursionError:
        faults.add("is nested too deeply", at(path, number))
        return None
    except ValueError as error:
        faults.add(f"is not valid JSON: {error}", at(path, number))
        return None
    if isinstance(value, list) and number == 1:
        raise InputError(
            Problem(
                "is a JSON list", at(path, number, 1), "write one JSON object a line (JSON Lines), without the list"
            )
        )
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a text", bool: "a truth value", type(None): "null"}.get(type(value), "a number")
        faults.add(f"is {kind}, not an object", at(path, number, 1), 'a row looks like {"messages": [...]}')
        return None
    return value


def _around(text: str, position: int) -> str:
    start = max(0, position - 30)
    piece = text[start : position + 30]
    return f"near {'…' if start else ''}{piece!r}" if piece else "at the end of the line"


def _cure(text: str, error: json.JSONDecodeError) -> str:
    before = text[: error.pos].rstrip()
    if (before.endswith(",") and text[error.pos : error.pos + 1] in ("}", "]", '"')) or "trailing comma" in error.msg:
        return "remove the comma before it"
    if error.msg == "Extra data" and before.endswith("}"):
        return "one object a line, with nothing after it"
    if "'" in text[error.pos : error.pos + 1]:
        return "JSON wants double quotes"
    return ""
