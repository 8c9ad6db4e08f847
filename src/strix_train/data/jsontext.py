"""JSON as rows are made of it: strict parsing, and the sentence for every fault of syntax."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_train.data.faults import Faults
from strix_train.data.locate import excerpt, offset
from strix_train.errors import Place, at


@dataclass(slots=True)
class JsonRecord:
    """An object that was read from `text`, which begins at a line and a column of the file (both 1-based)."""

    value: dict[str, Any]
    text: str
    path: Path
    line: int
    column: int = 1

    def place(self, *keys: str | int) -> Place:
        """Return the place of a value inside the row."""
        return place_in(self.path, self.text, offset(self.text, keys), self.line, self.column)

    def around(self, *keys: str | int) -> str:
        """Return the text around a value."""
        return excerpt(self.text, offset(self.text, keys))


def place_in(path: Path, text: str, position: int, line: int, column: int) -> Place:
    """Return the place of a position in a text that begins at `line` and `column` of the file."""
    breaks = text.count("\n", 0, position)
    if breaks:
        return at(path, line + breaks, position - text.rfind("\n", 0, position))
    return at(path, line, column + position)


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


DECODER = json.JSONDecoder(parse_constant=_no_constant)


def parse_row(text: str, path: Path, line: int, faults: Faults) -> JsonRecord | None:
    """Return the object of a text that should be one JSON object, or None with the fault noted."""
    try:
        value = DECODER.decode(text)
    except json.JSONDecodeError as error:
        faults.add(
            f"is not valid JSON: {error.msg} {near(text, error.pos)}",
            place_in(path, text, error.pos, line, 1),
            cure_syntax(text, error),
            excerpt(text, error.pos),
        )
        return None
    except RecursionError:
        faults.add("is nested too deeply", at(path, line), "a row is an object of texts and lists", excerpt(text, 0))
        return None
    except ValueError as error:
        faults.add(f"is not valid JSON: {error}", at(path, line), "write null or a number", excerpt(text, 0))
        return None
    if not isinstance(value, dict):
        faults.add(
            f"is {kind_of(value)}, not an object", at(path, line, 1), 'a row looks like {"messages": [...]}', text[:60]
        )
        return None
    return JsonRecord(value, text, path, line)


def kind_of(value: Any) -> str:
    """Return what a value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a truth value"
    words: dict[type, str] = {str: "a text", list: "a list", dict: "an object", int: "a number", float: "a number"}
    return words.get(type(value), f"a {type(value).__name__}")


def near(text: str, position: int) -> str:
    """Return the text around a fault of syntax, quoted, for the sentence itself."""
    start = max(0, position - 30)
    piece = text[start : position + 30]
    return f"near {'…' if start else ''}{piece!r}" if piece else "at the end of the line"


def cure_syntax(text: str, error: json.JSONDecodeError) -> str:
    """Return what to do about text that is not JSON, where that can be told."""
    before, here = text[: error.pos].rstrip(), text[error.pos : error.pos + 1]
    if (before.endswith(",") and here in ("}", "]", '"')) or "trailing comma" in error.msg:
        return "remove the comma before it"
    if error.msg == "Extra data" and before.endswith("}"):
        return "remove the comma" if here == "," else "one object a line, with nothing after it"
    if here == "'":
        return "JSON wants double quotes"
    if "Unterminated" in error.msg:
        return "close the quote: the row is cut off, or a quote inside the text has no backslash"
    if "control character" in error.msg:
        return r"write line breaks and tabs inside a text as \n and \t"
    if "escape" in error.msg:
        return r"write a backslash inside a text as \\"
    if text[error.pos :].startswith(("None", "True", "False")):
        return "JSON writes null, true and false"
    if not here:
        return "the row is cut off: write it whole"
    return "write the row with a JSON library"
