"""Where a key stands in a TOML text.

`tomllib` gives values without positions, and an error without a line is no help in a forty-line file. This
scanner only looks for lines: it reads text that `tomllib` has already accepted, so it need not judge it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence

Path = tuple[str | int, ...]


class Positions:
    """Maps key paths such as ("smoke", 0, "file") to 1-based lines."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {}
        self._scan(text)

    def line(self, path: Sequence[str | int]) -> int | None:
        """The line of `path`, or of the nearest enclosing key that stands in the text."""
        wanted = tuple(path)
        while wanted:
            if wanted in self._lines:
                return self._lines[wanted]
            wanted = wanted[:-1]
        return None

    def _scan(self, text: str) -> None:
        table: Path = ()
        counts: dict[Path, int] = {}
        position = 0
        line = 1
        length = len(text)
        while position < length:
            end = text.find("\n", position)
            end = length if end < 0 else end
            stripped = text[position:end].strip()
            if stripped.startswith("[["):
                name = self._anchored(header_key(stripped, 2), counts)
                index = counts.get(name, -1) + 1
                counts[name] = index
                table = (*name, index)
                self._note(name, line)
                self._note(table, line)
            elif stripped.startswith("["):
                table = self._anchored(header_key(stripped, 1), counts)
                self._note(table, line)
            elif stripped and not stripped.startswith("#"):
                equals = find_outside_quotes(text, "=", position, end)
                if equals >= 0:
                    key = (*table, *split_key(text[position:equals]))
                    self._note(key, line)
                    after = self._value(text, equals + 1, line, key)
                    line += text.count("\n", position, after)
                    position = after
                    end = text.find("\n", position)
                    end = length if end < 0 else end
            position = end + 1
            line += 1

    def _anchored(self, name: Path, counts: dict[Path, int]) -> Path:
        """Put the index of the latest [[array]] entry behind each part that is an array of tables."""
        anchored: Path = ()
        for number, part in enumerate(name):
            anchored = (*anchored, part)
            if number < len(name) - 1 and anchored in counts:
                anchored = (*anchored, counts[anchored])
        return anchored

    def _note(self, path: Path, line: int) -> None:
        if not path:
            return
        for size in range(1, len(path) + 1):
            self._lines.setdefault(path[:size], line)
        self._lines[path] = min(self._lines[path], line)

    def _value(self, text: str, position: int, line: int, key: Path) -> int:
        """Walk over one value, noting the items of arrays; return the position behind it."""
        while position < len(text) and text[position] in " \t":
            position += 1
        if position >= len(text):
            return position
        if text[position] == "[":
            return self._array(text, position, line, key)
        if text[position] == "{":
            return self._inline(text, position, line, key)
        if text[position] in "\"'":
            return skip_string(text, position)
        while position < len(text) and text[position] not in ",]}\n#":
            position += 1
        return position

    def _array(self, text: str, position: int, line: int, key: Path) -> int:
        position += 1
        index = 0
        while position < len(text):
            char = text[position]
            if char == "]":
                return position + 1
            if char == "#":
                newline = text.find("\n", position)
                position = len(text) if newline < 0 else newline
            elif char == "\n":
                line += 1
                position += 1
            elif char in " \t\r,":
                position += 1
            else:
                self._note((*key, index), line)
                after = self._value(text, position, line, (*key, index))
                line += text.count("\n", position, after)
                position = max(after, position + 1)
                index += 1
        return position

    def _inline(self, text: str, position: int, line: int, key: Path) -> int:
        position += 1
        while position < len(text) and text[position] != "}":
            if text[position] in " \t,\r\n":
                line += text[position] == "\n"
                position += 1
                continue
            if text[position] == "#":
                newline = text.find("\n", position)
                position = len(text) if newline < 0 else newline
                continue
            equals = find_outside_quotes(text, "=", position, len(text))
            if equals < 0:
                return len(text)
            inner = (*key, *split_key(text[position:equals]))
            self._note(inner, line)
            after = self._value(text, equals + 1, line, inner)
            line += text.count("\n", position, after)
            position = max(after, equals + 1)
        return position + 1


def header_key(line: str, start: int) -> Path:
    """The key of a table's header; a comment behind it may hold brackets as well."""
    end = find_outside_quotes(line, "]", start, len(line))
    return split_key(line[start : end if end >= 0 else len(line)])


def split_key(text: str) -> Path:
    """Split a dotted key, honouring quoted parts: `a."b.c"` → ("a", "b.c")."""
    parts: list[str | int] = []
    position = 0
    while position < len(text):
        char = text[position]
        if char in " \t.":
            position += 1
        elif char in "\"'":
            end = skip_string(text, position)
            parts.append(_unquoted(text[position:end]))
            position = end
        else:
            end = position
            while end < len(text) and text[end] not in " \t.":
                end += 1
            parts.append(text[position:end])
            position = end
    return tuple(parts)


def _unquoted(text: str) -> str:
    """The name that a quoted key stands for; escapes are rare and left to `tomllib`."""
    if text[0] == '"' and "\\" in text:
        try:
            return str(tomllib.loads(f"key = {text}")["key"])
        except tomllib.TOMLDecodeError:
            return text
    return text[1:-1] if len(text) > 1 and text[-1] == text[0] else text[1:]


def find_outside_quotes(text: str, char: str, start: int, end: int) -> int:
    """The position of `char` in text[start:end] outside quoted keys, or -1."""
    position = start
    while position < end:
        if text[position] in "\"'":
            position = skip_string(text, position)
            continue
        if text[position] == char:
            return position
        position += 1
    return -1


def skip_string(text: str, position: int) -> int:
    """Return the position behind the string that starts at `position`."""
    quote = text[position]
    if text.startswith(quote * 3, position):
        end = position + 3
        while end < len(text):
            if quote == '"' and text[end] == "\\":
                end += 2
                continue
            if text.startswith(quote * 3, end):
                end += 3
                # up to two quotes may stand directly before the closing three
                while text.startswith(quote, end):
                    end += 1
                return end
            end += 1
        return len(text)
    end = position + 1
    while end < len(text) and text[end] != "\n":
        if quote == '"' and text[end] == "\\":
            end += 2
            continue
        if text[end] == quote:
            return end + 1
        end += 1
    return end
