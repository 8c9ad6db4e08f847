"""Parquet and Arrow files as rows, some thousand at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_train.data.bytestream import ending
from strix_train.data.faults import Faults
from strix_train.errors import InputError, Place, Problem, at

_AT_ONCE = 1024
# Texts that are not UTF-8, dates out of range, time zones that are not known.
_NO_VALUE = (ValueError, OverflowError, LookupError)
# Who says something and what, in the two spellings of messages.
_MESSAGE = (("role", "content"), ("from", "value"))


@dataclass(slots=True)
class ColumnRecord:
    """A row of a table without lines. `source`: the file or data set; `number`: 1-based."""

    value: dict[str, Any]
    source: str
    number: int

    def place(self, *keys: str | int) -> Place:
        """Return the row, and the column inside it."""
        inside = ""
        for key in keys:
            inside += f"[{key + 1}]" if isinstance(key, int) else f"{'.' if inside else ''}{key}"
        return at(f"{self.source} (row {self.number}{', ' + inside if inside else ''})")

    def around(self, *keys: str | int) -> str:
        """Return the value itself."""
        value: Any = self.value
        for key in keys:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                break
        text = " ".join(repr(value).split())
        return text if len(text) <= 90 else f"{text[:90]}…"


def read(path: Path, faults: Faults) -> Iterator[ColumnRecord]:
    """Yield the rows of a .parquet or .arrow file. Raises InputError."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError(
            Problem("is read by pyarrow, which is not installed here", at(path), "save the rows as JSON Lines")
        ) from None
    number = 0
    try:
        batches = _parquet(pq, path) if ending(path) == ".parquet" else _arrow(pa, path)
        for batch in batches:
            for value in _values(batch, path, number):
                number += 1
                yield ColumnRecord(value, str(path), number)
    except OSError as error:
        what = f"cannot be read: {error.strerror or _first(error)}"
        raise InputError(Problem(what, at(path), "write or fetch the file again")) from None
    except pa.ArrowException as error:
        what = f"is not a whole {ending(path)[1:]} file: {_first(error)}"
        raise InputError(Problem(what, at(path), "write or fetch the file again")) from None
    if not number:
        raise InputError(Problem("holds no rows", at(path), "write or fetch the file again"))


def _values(batch: Any, path: Path, before: int) -> list[dict[str, Any]]:
    """Return the rows of a batch as objects. Raises InputError; `before`: how many rows come before them."""
    names = batch.schema.names
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise InputError(Problem(f"the column '{twice[0]}' is there twice", at(path), "write every column once"))
    try:
        values: list[dict[str, Any]] = batch.to_pylist()
    except _NO_VALUE as error:
        raise _unreadable(batch, path, before, error) from None
    for name in [field.name for field in batch.schema if "struct<" in str(field.type)]:
        for value in values:
            value[name] = _without_nulls(value[name])
    return values


def _without_nulls(value: Any) -> Any:
    """Return a value without the nulls inside it: a struct has one for every field that only other rows have.

    That a message says null stays: it is a fault, or a message of nothing but calls.
    """
    if type(value) is dict:
        found = {
            key: _without_nulls(inner) if type(inner) in (dict, list) else inner
            for key, inner in value.items()
            if inner is not None
        }
        if len(found) < len(value):
            found.update((words, None) for by, words in _MESSAGE if by in found and words in value.keys() - found)
        return found
    if type(value) is list:
        return [_without_nulls(inner) for inner in value]
    return value


def _unreadable(batch: Any, path: Path, before: int, error: Exception) -> InputError:
    """Return the sentence for values that Python has none for, with the first column that holds one."""
    what = ""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.to_pylist()
        except _NO_VALUE as found:
            what, error = f"the column '{name}' ", found
            break
    if isinstance(error, UnicodeDecodeError):
        why, cure = f"byte 0x{error.object[error.start]:02x} is not UTF-8", "write its texts as UTF-8"
    else:
        why, cure = _first(error), "write the column as texts, or leave it out"
    place = at(f"{path} (rows {before + 1}-{before + batch.num_rows})")
    return InputError(Problem(f"{what}cannot be read: {why}", place, cure))


def _parquet(pq: Any, path: Path) -> Iterator[Any]:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=_AT_ONCE)


def _arrow(pa: Any, path: Path) -> Iterator[Any]:
    """The stream format is what data sets are saved in; the file format is what other programs write."""
    with pa.memory_map(str(path)) as source:
        try:
            reader = pa.ipc.open_stream(source)
        except pa.ArrowInvalid:
            source.seek(0)
            file = pa.ipc.open_file(source)
            batches = (file.get_batch(index) for index in range(file.num_record_batches))
        else:
            batches = iter(reader)
        for batch in batches:
            for start in range(0, batch.num_rows, _AT_ONCE):
                yield batch.slice(start, _AT_ONCE)


def _first(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else f"{text[:157]}…"
