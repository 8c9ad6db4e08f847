"""A .json file: one list of objects, read as a stream. A file of JSON Lines under that name is read as such.

The list's entries are parsed one after another from a window of the file that grows only while an entry does not fit.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from strix_train.data import lines
from strix_train.data.bytestream import not_utf8, open_bytes
from strix_train.data.faults import Faults
from strix_train.data.jsontext import DECODER, JsonRecord, cure_syntax, kind_of, near, place_in
from strix_train.data.locate import excerpt
from strix_train.errors import InputError, Place, Problem, at

MAX_ENTRY = 32 << 20
_CHUNK = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]*")
_SHAPE = 'it holds one list of objects, like [{"messages": [...]}, …]'


def read(path: Path, faults: Faults) -> Iterator[JsonRecord]:
    """Yield the objects of the file. Raises InputError where it is no list, at its first fault of syntax."""
    with open_bytes(path) as stream:
        window = _Window(stream, path)
        first = window.peek()
        if first == "[":
            yield from _entries(window, faults)
            return
        if first != "{":
            what = f"begins with {first!r}" if first else "holds no rows"
            raise InputError(Problem(what, window.place(), _SHAPE))
        place, head = window.place(), window.first_line()
    if not _is_lines(head):
        raise InputError(Problem("is one JSON object over many lines, not a list", place, _SHAPE))
    yield from lines.read(path, faults)


def _is_lines(head: str) -> bool:
    """Whether the first line of a file that begins with { looks like a row of JSON Lines."""
    try:
        DECODER.decode(head)
    except (ValueError, RecursionError):
        return not head.rstrip().endswith(("{", "[", ","))
    return True


def _entries(window: _Window, faults: Faults) -> Iterator[JsonRecord]:
    window.skip(1)
    number = 0
    while True:
        first = window.peek()
        if first == "]" and not number:
            raise InputError(Problem("holds no rows", window.place(), _SHAPE))
        if first in ("]", ","):
            raise InputError(
                Problem("a comma with no entry behind it", window.place(), "remove the comma", window.around())
            )
        place = window.place()
        value, text = window.entry()
        number += 1
        if isinstance(value, dict):
            yield JsonRecord(value, text, window.path, place.line, place.column)
        else:
            faults.add(f"entry {number} is {kind_of(value)}, not an object", place, _SHAPE, text[:60])
        first = window.peek()
        if first == "]":
            window.skip(1)
            if window.peek():
                raise InputError(
                    Problem("text after the end of the list", window.place(), "remove it", window.around())
                )
            return
        if first != ",":
            what = "a comma is missing" if first else "the list does not end"
            cure = "write a comma between two entries" if first else "the file is cut off: end it with ]"
            raise InputError(Problem(what, window.place(), cure, window.around()))
        window.skip(1)


class _Window:
    """The part of a file that is being parsed, and the line and column of a mark in it.

    The mark follows the parsing: line breaks are counted from it, so that none is counted twice.
    """

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self.stream, self.path = stream, path
        self.text = ""
        self.at = self.mark = 0
        self.line = self.column = 1
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._ended = False

    def more(self, size: int = _CHUNK) -> bool:
        """Read on, and say whether there was anything. Raises InputError for bytes that are not UTF-8."""
        if self._ended:
            return False
        raw = self.stream.read(size)
        self._ended = not raw
        if raw:
            self._drop()
        try:
            self.text += self._decoder.decode(raw, final=self._ended)
        except UnicodeDecodeError as error:
            self._advance()
            seen = self.text[self.mark :] + error.object[: error.start].decode("utf-8", "replace")
            place = place_in(self.path, seen, len(seen), self.line, self.column)
            raise not_utf8(error, place, self.path) from None
        return bool(raw)

    def _drop(self) -> None:
        """Forget what is parsed."""
        self._advance()
        self.text, self.at, self.mark = self.text[self.at :], 0, 0

    def _advance(self) -> None:
        """Move the mark to where the parsing is."""
        breaks = self.text.count("\n", self.mark, self.at)
        if breaks:
            self.line += breaks
            self.column = self.at - self.text.rfind("\n", self.mark, self.at)
        else:
            self.column += self.at - self.mark
        self.mark = self.at

    def first_line(self) -> str:
        """Return the rest of the line, as far as an entry may be long."""
        while "\n" not in self.text and len(self.text) < MAX_ENTRY and self.more():
            pass
        return self.text[self.at :].partition("\n")[0]

    def place(self) -> Place:
        self._advance()
        return at(self.path, self.line, self.column)

    def around(self) -> str:
        return excerpt(self.text, self.at)

    def skip(self, count: int) -> None:
        self.at += count

    def peek(self) -> str:
        """Return the next character that is no space, or '' at the end of the file."""
        while True:
            match = _SPACE.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def entry(self) -> tuple[object, str]:
        """Return the next value and its text. Raises InputError where it is not JSON."""
        size = _CHUNK
        while True:
            try:
                value, end = DECODER.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                # a value may go on behind the window: read on before it is called wrong
                if len(self.text) - self.at < MAX_ENTRY and self.more(size):
                    size *= 2
                    continue
                raise self._wrong(error) from None
            except RecursionError:
                raise InputError(Problem("is nested too deeply", self.place(), "a row is flat")) from None
            except ValueError as error:
                raise InputError(
                    Problem(f"is not valid JSON: {error}", self.place(), "write null or a number")
                ) from None
            if end == len(self.text) and not self._ended and self.more(size):
                continue  # a number or a word may go on
            text = self.text[self.at : end]
            self.at = end
            return value, text

    def _wrong(self, error: json.JSONDecodeError) -> InputError:
        self._advance()
        place = place_in(self.path, self.text[self.mark :], error.pos - self.mark, self.line, self.column)
        what = f"is not valid JSON: {error.msg} {near(self.text, error.pos)}"
        return InputError(Problem(what, place, cure_syntax(self.text, error), excerpt(self.text, error.pos)))
