"""A JSON Lines file read as a stream: one object a line, every fault with its line and column.

No data library is involved, so a fault is told before anything slow is loaded, and in the file's own terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from strix_train.data.bytestream import decoded, open_bytes
from strix_train.data.faults import Faults
from strix_train.data.jsontext import JsonRecord, parse_row
from strix_train.errors import InputError, Problem, at

MAX_LINE = 32 << 20
_LIKE = 'write one JSON object a line, like {"messages": [...]}'


def read(path: Path, faults: Faults) -> Iterator[JsonRecord]:
    """Yield the objects of the file; faults of single lines are noted and skipped. Raises InputError."""
    number = 0
    empty = True
    with open_bytes(path) as stream:
        while raw := stream.readline(MAX_LINE):
            number += 1
            if len(raw) == MAX_LINE:
                raise InputError(Problem("is longer than 32 MiB", at(path, number), "one row is one line"))
            text = decoded(raw, path, number, faults)
            if text is None or not (text := text.rstrip("\r\n")) or text.isspace():
                continue
            if empty:
                _refuse_documents(text, path, number)
            empty = False
            record = parse_row(text, path, number, faults)
            if record is not None:
                yield record
    if empty and not faults.problems:
        raise InputError(Problem("holds no rows", at(path), _LIKE))


def _refuse_documents(text: str, path: Path, number: int) -> None:
    """Refuse a file of one JSON document: its name should say so."""
    if text.strip() in ("[", "{"):
        column = len(text) - len(text.lstrip()) + 1
        raise InputError(
            Problem(
                "is one JSON document over many lines",
                at(path, number, column),
                "write one JSON object a line (JSON Lines), or name the file .json",
            )
        )
    if text.lstrip().startswith("[") and text.rstrip().endswith("]"):
        raise InputError(
            Problem(
                "is a JSON list",
                at(path, number, 1),
                "write one JSON object a line (JSON Lines), without the list, or name the file .json",
            )
        )
