"""Read a Dockerfile as both engines do: instructions with their lines, and the words of a shell command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_CONTINUED = re.compile(r"\\[ \t]*$")
_SEPARATORS = ";&|()`"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its continuation lines joined; `line` is where it begins (1-based).

    `starts`: where in `body` each of its lines begins: (offset, line).
    """

    keyword: str
    body: str
    line: int
    starts: tuple[tuple[int, int], ...] = ()

    def line_at(self, offset: int) -> int:
        return next((line for start, line in reversed(self.starts) if start <= offset), self.line)


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a shell command without its quotes. `offset`: where it begins.

    `heredoc`: where in `text` the letters behind an unquoted << begin, or None. A separator (`;`, `&`, `|`, a bracket)
    is a word of its own with `separates`.
    """

    text: str
    offset: int
    heredoc: int | None = None
    separates: bool = False


@dataclass(slots=True)
class _Open:
    """An instruction that is being read."""

    keyword: str
    line: int
    body: str = ""
    starts: list[tuple[int, int]] = field(default_factory=list)

    def done(self) -> Instruction:
        return Instruction(self.keyword, self.body.rstrip(), self.line, tuple(self.starts))


def instructions(text: str) -> Iterator[Instruction]:
    """Split a Dockerfile. Comments and empty lines do not end a continued instruction; heredocs are left out."""
    lines = text.split("\n")
    current: _Open | None = None
    number = 0
    while number < len(lines):
        line = lines[number].rstrip("\r")
        number += 1
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        continued = _CONTINUED.search(line)
        content = line[: continued.start()] if continued else line
        if current is None:
            keyword, *rest = content.split(None, 1) or [""]
            current = _Open(keyword.upper(), number)
            content = rest[0] if rest else ""
        current.starts.append((len(current.body), number))
        current.body += content
        if continued:
            continue
        instruction, current = current.done(), None
        yield instruction
        for delimiter in heredocs(instruction):
            ends = [later for later in range(number, len(lines)) if lines[later].lstrip("\t").rstrip("\r") == delimiter]
            number = ends[0] + 1 if ends else number
    if current is not None:
        yield current.done()


def heredocs(instruction: Instruction) -> list[str]:
    """The delimiters of the here-documents that an instruction opens."""
    return [name for name, _ in _heredocs(instruction)]


def heredoc_offsets(instruction: Instruction) -> list[int]:
    return [offset for _, offset in _heredocs(instruction)]


def _heredocs(instruction: Instruction) -> Iterator[tuple[str, int]]:
    if instruction.keyword not in ("RUN", "COPY", "ADD") or exec_form(instruction.body) is not None:
        return
    found = words(instruction.body)
    for number, word in enumerate(found):
        if word.heredoc is None:
            continue
        name = word.text[word.heredoc :].removeprefix("-")
        if not name and number + 1 < len(found) and not found[number + 1].separates:
            name = found[number + 1].text
        if name:
            yield name, word.offset


def exec_form(body: str) -> list[str] | None:
    """The arguments when `body` is a JSON list, else None."""
    if not body.startswith("["):
        return None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else None


def words(body: str) -> list[Word]:
    """Split as a shell would, as far as quotes, backslashes, separators and arithmetic go; a comment ends it."""
    found: list[Word] = []
    position = 0
    while position < len(body):
        char = body[position]
        if char.isspace():
            position += 1
        elif char == "#" and (position == 0 or body[position - 1].isspace() or body[position - 1] in _SEPARATORS):
            break
        elif body.startswith("((", position):
            position = _past_arithmetic(body, position)
        elif char in _SEPARATORS:
            found.append(Word(char, position, separates=True))
            position += 1
        else:
            word, position = _word(body, position)
            found.append(word)
    return found


def _word(body: str, start: int) -> tuple[Word, int]:
    text, heredoc, position = "", None, start
    while position < len(body) and not body[position].isspace():
        char = body[position]
        if char == "\\":
            text += body[position + 1 : position + 2]
            position += 2
        elif char in "'\"":
            inner, position = _quoted(body, position)
            text += inner
        elif body.startswith("$((", position):
            end = _past_arithmetic(body, position + 1)
            text += body[position:end]
            position = end
        elif body.startswith("${", position):
            end = body.find("}", position)
            end = len(body) if end < 0 else end + 1
            text += body[position:end]
            position = end
        elif char in _SEPARATORS:
            break
        elif char == "<":
            run = len(body) - position - len(body[position:].lstrip("<"))
            text += "<" * run
            position += run
            # three of them take a text of one word
            heredoc = len(text) if run == 2 and heredoc is None else heredoc
        else:
            text += char
            position += 1
    return Word(text, start, heredoc), position


def _quoted(body: str, position: int) -> tuple[str, int]:
    """What stands between the quotes that begin here, and the position behind them."""
    quote = body[position]
    text = ""
    position += 1
    while position < len(body) and body[position] != quote:
        if quote == '"' and body[position] == "\\" and body[position + 1 : position + 2] in ('"', "\\", "$", "`"):
            position += 1
        text += body[position : position + 1]
        position += 1
    return text, position + 1


def _past_arithmetic(body: str, position: int) -> int:
    depth = 0
    while position < len(body):
        depth += (body[position] == "(") - (body[position] == ")")
        position += 1
        if depth == 0:
            break
    return position
