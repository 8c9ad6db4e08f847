"""CSV and TSV files as rows: the first line names the columns, every fault with its line and column."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_train.data.bytestream import decoded, ending, open_bytes
from strix_train.data.cells import BEGINNINGS, STRUCTURED, value_of
from strix_train.data.faults import Faults
from strix_train.data.jsontext import place_in
from strix_train.data.locate import excerpt
from strix_train.errors import InputError, Place, Problem, at

MAX_FIELD = 16 << 20


@dataclass(slots=True)
class CellRecord:
    """A row of a table. `text`: the row as it stands in the file, which may go over several lines."""

    value: dict[str, Any]
    names: tuple[str, ...]
    text: str
    path: Path
    line: int
    separator: str

    def place(self, *keys: str | int) -> Place:
        """Return the place of a cell."""
        return place_in(self.path, self.text, self._offset(keys), self.line, 1)

    def around(self, *keys: str | int) -> str:
        """Return the text around a cell."""
        return excerpt(self.text, self._offset(keys))

    def _offset(self, keys: tuple[str | int, ...]) -> int:
        if not keys or keys[0] not in self.names:
            return 0
        wanted = self.names.index(str(keys[0]))
        position, quoted, column = 0, False, 0
        for position, character in enumerate(self.text):
            if column == wanted:
                return position
            if character == '"':
                quoted = not quoted
            elif character == self.separator and not quoted:
                column += 1
        return position if column < wanted else len(self.text)


class _Lines:
    """The file's lines for the csv reader, remembering those of the row that it is reading."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self.path, self.faults = path, faults
        self.number = 0
        self.row: list[str] = []

    def __iter__(self) -> Iterator[str]:
        with open_bytes(self.path) as stream:
            while raw := stream.readline(MAX_FIELD):
                self.number += 1
                text = decoded(raw, self.path, self.number, self.faults)
                if text is None:
                    # the row's other lines would be read as a row of their own
                    text = raw.decode("utf-8", "replace")
                self.row.append(text)
                yield text


def read(path: Path, faults: Faults) -> Iterator[CellRecord]:
    """Yield the rows of the table. Raises InputError where it is none."""
    separator = "\t" if ending(path) == ".tsv" else ","
    # without the names of the columns there are no rows, whatever may be skipped
    first = Faults()
    source = _Lines(path, first)
    csv.field_size_limit(MAX_FIELD)
    reader = csv.reader(source, delimiter=separator, strict=True)
    names: tuple[str, ...] = ()
    empty = True
    while True:
        source.row.clear()
        line = source.number + 1
        before = faults.skipped
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            text = "".join(source.row)
            raise InputError(
                Problem(f"is not valid CSV: {error}", at(path, line), _cure(str(error)), excerpt(text, 0))
            ) from None
        if not cells or cells == [""] or faults.skipped > before:
            continue
        text = "".join(source.row).rstrip("\r\n")
        if not names:
            first.settle()
            names, source.faults = _header(cells, path, line, text), faults
            continue
        empty = False
        record = CellRecord({}, names, text, path, line, separator)
        if len(cells) != len(names):
            cure = "quote a text that holds the separator, and double the quotes inside it"
            faults.of(record, (), f"has {len(cells)} cells and the first line names {len(names)} columns", cure)
            continue
        if _fill(record, cells, faults):
            yield record
    if empty and not faults.problems:
        raise InputError(Problem("holds no rows", at(path), "the first line names the columns, the others are rows"))


def _header(cells: list[str], path: Path, line: int, text: str) -> tuple[str, ...]:
    """Return the names of the columns; one may have none, like the row numbers that pandas writes."""
    names = tuple(cell.strip() for cell in cells)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not any(names):
        what = "two columns have no name" if twice else "no column has a name"
        if any(twice):
            what = f"the column '{twice[-1]}' is there twice"
        raise InputError(Problem(what, at(path, line), "the first line names every column once", excerpt(text, 0)))
    return names


def _fill(record: CellRecord, cells: list[str], faults: Faults) -> bool:
    """Give a record its values by their names, or return False with the fault noted."""
    for name, cell in zip(record.names, cells, strict=True):
        if not cell.startswith(BEGINNINGS):
            record.value[name] = cell
            continue
        try:
            record.value[name] = value_of(cell, structured=name in STRUCTURED)
        except ValueError as error:
            cure = "save the rows as JSON Lines or Parquet: to_json(…, orient='records', lines=True) of pandas"
            faults.of(record, (name,), f"'{name}' {error}", cure)
            return False
    record.value.pop("", None)
    return True


def _cure(what: str) -> str:
    if "field larger" in what:
        return "a quote that is never closed swallows the rest of the file: look above"
    if "unexpected end" in what:
        return "a quote that begins here is never closed"
    return 'double a quote inside a quoted text: ""'
