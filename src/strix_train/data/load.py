"""A data file as rows: the format found or given, every row checked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_train.data.formats import FORMATS, Format
from strix_train.data.lines import Faults, Line, read
from strix_train.data.rows import Row
from strix_train.errors import InputError, Problem

# Keys of formats that are met often and are not read here: what to do about them.
_ELSEWHERE = {
    "conversations": "this looks like ShareGPT rows; rename it to 'messages' with 'role' and 'content'",
    "instruction": "this looks like Alpaca rows; rename 'instruction' to 'prompt' and 'output' to 'completion'",
    "question": "rename 'question' to 'prompt' and 'answer' to 'completion'",
    "chosen": "preference pairs are not trained by method sft",
    "text": "plain text has no answer to learn; write 'prompt' and 'completion'",
}


@dataclass(frozen=True, slots=True)
class DataSet:
    """The rows of one file, its format and the sha256 of its bytes."""

    path: Path
    format: str
    rows: tuple[Row, ...]
    sha256: str


def load(path: Path, wanted: str = "auto") -> DataSet:
    """Read a data file. Raises InputError with every fault found, up to a limit."""
    faults = Faults()
    form = FORMATS.get(wanted)
    rows: list[Row] = []
    for line in read(path, faults):
        if form is None:
            form = _recognise(line)
        if not form.claims(line.value):
            others = [other.name for other in FORMATS.values() if other.claims(line.value)]
            cure = f"this row looks like {others[0]}" if others else _cure_keys(line.value)
            faults.add(f"is not a row of format {form.name}", line.place(), cure)
            continue
        row = form.row(line, faults)
        if row is not None:
            rows.append(row)
    faults.settle()
    if form is None:  # no line at all is a fault that settle() raised
        raise InputError(Problem(f"{path}: holds no rows"))
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return DataSet(path, form.name, tuple(rows), digest)


def _recognise(line: Line) -> Format:
    for form in FORMATS.values():
        if form.claims(line.value):
            return form
    raise InputError(Problem("the format of the first row is not known", line.place(), _cure_keys(line.value)))


def _cure_keys(value: dict[str, Any]) -> str:
    for key, cure in _ELSEWHERE.items():
        if key in value:
            return cure
    has = ", ".join(repr(key) for key in sorted(value)[:8]) or "no keys"
    return f"it has {has}; a row has 'messages', or 'prompt' and 'completion'"
