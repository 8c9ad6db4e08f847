"""A TOML document whose faults know their line: typed look-ups that collect every problem before raising once.

Only the standard library is imported: the lock is read this way on the path of a build that has nothing to do.
The strict models of schema.py are for files that people write; they cost more to import than such a build may take.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strix_finetune.errors import InputError, Place, Problem, nearest
from strix_finetune.tomlpos import Positions

_AT_LINE = re.compile(r"\(at (?:line (\d+), column \d+|end of document)\)")

KeyPath = tuple[str | int, ...]


@dataclass
class Document:
    """One file. `error` is raised with all problems by `finish`, or at once when the text is no TOML."""

    data: bytes
    path: Path
    error: type[InputError]
    cure: str = ""
    problems: list[Problem] = field(default_factory=list)
    _positions: Positions | None = None

    def __post_init__(self) -> None:
        try:
            self._text = self.data.decode()
        except UnicodeDecodeError as error:
            line = self.data.count(b"\n", 0, error.start) + 1
            raise self.error(Problem("not UTF-8 text", Place(self.path, line), self.cure)) from None
        try:
            values = tomllib.loads(self._text)
        except (ValueError, RecursionError, OverflowError) as error:
            raise self.error(self._not_toml(error)) from None
        self.root = Table(self, (), values)

    def _not_toml(self, error: Exception) -> Problem:
        message = str(error) if isinstance(error, ValueError) else "nested too deeply"
        match = _AT_LINE.search(message)
        line = self._text.count("\n") + 1 if match is None or match[1] is None else int(match[1])
        if isinstance(error, RecursionError | OverflowError) or match is None:
            line = 1
        sentence = _AT_LINE.sub("", message).strip().rstrip(".")
        return Problem(f"not valid TOML: {sentence[:1].lower()}{sentence[1:]}", Place(self.path, line), self.cure)

    def place(self, path: KeyPath) -> Place:
        if self._positions is None:
            self._positions = Positions(self._text)
        return Place(self.path, self._positions.line(path) or 1)

    def add(self, problem: Problem) -> None:
        self.problems.append(problem)

    def finish(self) -> None:
        """Raise when anything was wrong, keys that nobody asked for included."""
        self.root.check_unknown()
        if self.problems:
            raise self.error(self.problems)


class Table:
    """A table being read. A look-up that fails records a problem and returns an empty value."""

    def __init__(self, document: Document, path: KeyPath, values: Mapping[str, Any]) -> None:
        self.document, self.path, self._values = document, path, values
        self._asked: set[str] = set()
        self._children: list[Table] = []

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def place(self, key: str) -> Place:
        return self.document.place((*self.path, key))

    def fault(self, key: str, message: str, cure: str | None = None) -> None:
        self.document.add(Problem(message, self.place(key), self.document.cure if cure is None else cure))

    def text(self, key: str, pattern: str) -> str:
        """A string that matches `pattern` as a whole."""
        value = self._get(key, str, "a string")
        if value is None:
            return ""
        if not re.fullmatch(pattern, value):
            self.fault(key, f"{self._dotted(key)} has a value that cannot be right: {value[:80]!r}")
            return ""
        return str(value)

    def integer(self, key: str, *, minimum: int) -> int:
        value = self._get(key, int, "a whole number")
        if value is None:
            return minimum
        if value < minimum:
            self.fault(key, f"{self._dotted(key)} must be at least {minimum}")
        return int(value)

    def table(self, key: str, *, optional: bool = False) -> Table:
        values = self._get(key, dict, "a table", optional=optional)
        child = Table(self.document, (*self.path, key), values or {})
        self._children.append(child)
        return child

    def names(self, pattern: str) -> Iterator[str]:
        """The keys, each matched against `pattern`; marks nothing as read."""
        for key in self._values:
            if re.fullmatch(pattern, key):
                yield key
            else:
                self._asked.add(key)
                self.fault(key, f"{self._dotted(key)!r} is not a name that can stand here")

    def tables(self, key: str, pattern: str, *, optional: bool = True) -> Iterator[tuple[str, Table]]:
        """Tables inside the table `key`: name, table."""
        outer = self.table(key, optional=optional)
        for name in outer.names(pattern):
            yield name, outer.table(name)

    def listed(self, key: str) -> Iterator[Table]:
        """The tables of a list, in its order."""
        for number, values in enumerate(self._get(key, list, "a list") or ()):
            if isinstance(values, dict):
                entry = Table(self.document, (*self.path, key, number), values)
                self._children.append(entry)
                yield entry
            else:
                place = self.document.place((*self.path, key, number))
                self.document.add(Problem(f"{self._dotted(key)} must be a list of tables", place, self.document.cure))

    def check_unknown(self) -> None:
        for key in self._values.keys() - self._asked:
            cure = nearest(key, sorted(self._asked)) if self._asked else ""
            self.fault(key, f"unknown key {self._dotted(key)!r}", cure)
        for child in self._children:
            child.check_unknown()

    def _get(self, key: str, kind: type, words: str, *, optional: bool = False) -> Any:
        self._asked.add(key)
        if key not in self._values:
            if not optional:
                self.fault(key, f"{self._dotted(key)} is missing")
            return None
        value = self._values[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            self.fault(key, f"{self._dotted(key)} must be {words}")
            return None
        return value

    def _dotted(self, key: str) -> str:
        return ".".join(str(part) for part in (*self.path, key))
