"""Which template line made which rendered line.

A second, marked rendering answers that: each line of plain text and each expression gets an invisible mark behind the
lexer, where white space is already settled, and the marks come out of the rendered text again. It is made only when
there is a fault to place, and never becomes an image: a mark inside a value that the template then measures or compares
would change it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

from strix_finetune.errors import Place

_MARK = re.compile("\ue000\\d+:\\d+\ue001")
_FIRST = re.compile(f"(?:{_MARK.pattern}|[ \\t])*\ue000(\\d+):(\\d+)\ue001")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered text; `locate()[i]` is the template line behind the text's line i + 1."""

    text: str
    locate: Callable[[], Sequence[Place]]

    def place(self, line: int) -> Place:
        places = self.locate()
        return places[min(max(line, 1), len(places)) - 1]


class MarkLines(Extension):
    """Marks the beginning of each line of plain text and of each expression with the number of its file and line."""

    def filter_stream(self, stream: TokenStream) -> Iterable[Token]:
        number = self.environment.marked_files(stream.filename or "")  # type: ignore[attr-defined]
        return _marked(stream, number)


def _marked(stream: TokenStream, number: int) -> Iterator[Token]:
    for token in stream:
        if token.type == "variable_begin":
            yield Token(token.lineno, "data", f"\ue000{number}:{token.lineno}\ue001")
        if token.type != "data":
            yield token
            continue
        lines = token.value.split("\n")
        last = len(lines) - 1
        marked = [
            f"\ue000{number}:{token.lineno + count}\ue001{line}" if line or count < last else line
            for count, line in enumerate(lines)
        ]
        yield Token(token.lineno, "data", "\n".join(marked))


def unmark(text: str, files: Sequence[Path]) -> tuple[str, list[Place | None]]:
    """Take the marks out again: the text without them, and for each of its lines the place where it begins."""
    lines: list[str] = []
    places: list[Place | None] = []
    for line in text.split("\n"):
        # the mark next to the first visible letter; one further on belongs to what follows a value of several lines
        found = _FIRST.match(line)
        lines.append(_MARK.sub("", line))
        places.append(Place(files[int(found[1])], int(found[2])) if found else None)
    return "\n".join(lines), places


def fill(places: Sequence[Place | None], default: Place) -> list[Place]:
    """A line without a mark was made by an expression alone: it belongs to the line before it."""
    filled: list[Place] = []
    for place in places:
        default = place or default
        filled.append(default)
    return filled


def align(text: str, marked: str, places: Sequence[Place | None]) -> list[Place | None]:
    """Carry places over to `text` where the marked rendering came out differently."""
    if text == marked:
        return list(places)
    lines = text.split("\n")
    carried: list[Place | None] = [None] * len(lines)
    for block in SequenceMatcher(None, lines, marked.split("\n"), autojunk=False).get_matching_blocks():
        carried[block.a : block.a + block.size] = places[block.b : block.b + block.size]
    return carried
