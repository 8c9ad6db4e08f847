"""A set of rows: its files, their format, and its rows, checked as they stream by.

A set is read once to be checked, keeping eight bytes a row, and again when its rows are turned into tokens: what
lies in memory does not grow with what the rows say.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strix_train.data.faults import Faults, Record
from strix_train.data.files import reader_of
from strix_train.data.formats import FORMATS, Format, learned_by
from strix_train.data.formats.beside import is_text_only
from strix_train.data.formats.talk import Wishes
from strix_train.data.rows import Preference, Rated, Row, content
from strix_train.errors import InputError, Place, Problem, at

# Keys of rows that are met often and say nothing by themselves: what to do about them.
_ELSEWHERE = {
    "question": "name the columns: data.columns: {prompt: question, completion: answer}",
    "query": "name the columns: data.columns: {prompt: query, completion: response}",
    "input": "name the columns: data.columns: {prompt: input, completion: output}",
    "content": "name the column, for method cpt: data.columns: {text: content}",
    "train": "the rows are inside 'train': write that list alone",
    "data": "the rows are inside 'data': write that list alone",
    "rows": "the rows are inside 'rows': write that list alone",
    "input_ids": "rows are texts, not tokens: they are tokenised here",
}
WANT = {
    "sft": "a row of method sft has 'messages', or 'prompt' and 'completion'",
    "cpt": "a row of method cpt has 'text'",
    "dpo": "a row of method dpo has 'prompt', 'chosen' and 'rejected'",
    "orpo": "a row of method orpo has 'prompt', 'chosen' and 'rejected'",
    "reward": "a row of method reward has 'prompt', 'chosen' and 'rejected'",
    "kto": "a row of method kto has 'prompt', 'completion' and 'label'",
    "grpo": "a row of method grpo has 'prompt', and what the rewards look at",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a recipe says about a set: its format, its columns by our names, and the method that learns it."""

    method: str = "sft"
    format: str = "auto"
    columns: dict[str, str] = field(default_factory=dict)
    wishes: Wishes = field(default_factory=Wishes)
    skip: bool = False


@dataclass(frozen=True, slots=True)
class DataSet:
    """A set that was checked. `digests`: eight bytes of each row's content; `skipped`: rows left out for faults.

    `path`: the file or folder. `sha256`: of the files' bytes, in their order.
    """

    path: Path
    files: tuple[Path, ...]
    shape: Shape
    format: str
    digests: array[int]
    sha256: str
    skipped: int = 0
    notes: tuple[Problem, ...] = ()

    def __len__(self) -> int:
        return len(self.digests)

    def __iter__(self) -> Iterator[Row]:
        """Read the rows again, in order. Raises InputError where a file has changed meanwhile."""
        changed = InputError(Problem("has changed since it was checked", at(self.path), "begin again"))
        count = 0
        for row in _rows(self.files, self.shape, FORMATS[self.format], Faults(skip=self.shape.skip)):
            # each row by itself: which ones are kept for evaluation was decided by what they said
            if count == len(self.digests) or digest(row) != self.digests[count]:
                raise changed
            count += 1
            yield row
        if count != len(self.digests):
            raise changed

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows at once, for small sets."""
        return tuple(self)


def load(path: Path, shape: Shape | None = None, files: tuple[Path, ...] = (), see: Any = None) -> DataSet:
    """Check a set of rows. Raises InputError with every fault found, up to a limit.

    `files`: those of a folder. `see`: called with each row as it goes by.
    """
    shape = shape or Shape()
    files = files or (path,)
    faults = Faults(skip=shape.skip)
    recognised = _Recognised(shape)
    digests = array("Q")
    for row in _rows(files, shape, recognised, faults):
        digests.append(digest(row))
        if see is not None:
            see(row)
    faults.settle()
    if not digests:
        what = f"every row has a fault: {faults.problems[0]}" if faults.problems else "holds no rows"
        raise InputError(Problem(what, at(path)))
    return DataSet(path, files, shape, recognised.name, digests, _sha256(files), faults.skipped, tuple(faults.problems))


def digest(row: Row) -> int:
    """Return 64 bits of a row's content; rows that say the same have the same."""
    text = content(row).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _sha256(files: tuple[Path, ...]) -> str:
    """Return the sha256 of one file's bytes, or of the files' names and digests."""
    found = []
    for path in files:
        with path.open("rb") as stream:
            found.append(hashlib.file_digest(stream, "sha256").hexdigest())
    if len(found) == 1:
        return found[0]
    listed = "".join(f"{path.name} {each}\n" for path, each in zip(files, found, strict=True))
    return hashlib.sha256(listed.encode()).hexdigest()


class _Recognised:
    """The format of a set: as asked for, or that of its first row."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.form = FORMATS.get(shape.format)
        self.name = shape.format

    def of(self, record: Record) -> Format:
        """Return the format, found by the first row."""
        if self.form is None:
            self.form = self._by(record)
            self.name = self.form.name
        return self.form

    def _by(self, record: Record) -> Format:
        method = self.shape.method
        for form in learned_by(method):
            if form.claims(record.value):
                return form
        for form in FORMATS.values():
            if form.claims(record.value):
                what = f"the rows are {form.name}, which method {method} does not learn"
                raise InputError(Problem(what, record.place(), _cure(form, method), record.around()))
        cure = _cure_keys(record.value, method)
        raise InputError(Problem("the format of the first row is not known", record.place(), cure, record.around()))


def _rows(files: tuple[Path, ...], shape: Shape, form: Format | _Recognised, faults: Faults) -> Iterator[Row]:
    """Yield the rows of the files; those with faults are noted and left out."""
    for path in files:
        for record in reader_of(path, at(path))(path, faults):
            if shape.columns:
                record = Renamed(record, shape.columns)
            known = form.of(record) if isinstance(form, _Recognised) else form
            if not known.takes(record.value, asked=shape.format == known.name):
                others = [other.name for other in FORMATS.values() if other.claims(record.value)]
                cure = f"this row looks like {others[0]}" if others else _cure_keys(record.value, shape.method)
                faults.of(record, (), f"is not a row of format {known.name}", cure)
                continue
            row = known.row(record, faults, shape.wishes) if is_text_only(record, faults) else None
            if row is None:
                continue
            if isinstance(row, Preference) and shape.method == "kto":
                yield Rated(row.chosen, True, row.place)
                yield Rated(row.rejected, False, row.place)
            else:
                yield row


def _cure(form: Format, method: str) -> str:
    if form.name == "text" and method == "sft":
        return "plain text has no answer to learn: write method: cpt, or rows of 'prompt' and 'completion'"
    return f"{WANT[method]}, or write method: {form.methods[0]}"


def _cure_keys(value: dict[str, Any], method: str) -> str:
    for key, cure in _ELSEWHERE.items():
        if key in value:
            return cure
    has = ", ".join(repr(key) for key in sorted(value, key=str)[:8]) or "no keys"
    return f"it has {has}, and {WANT[method]}"


class Renamed:
    """A row whose file calls some keys otherwise: `columns` maps our names to the file's."""

    def __init__(self, record: Record, columns: dict[str, str]) -> None:
        self._record, self._columns = record, columns
        # a name may be one of ours and one of the file's at once: both go before any value gets its new name
        named = {*columns, *columns.values()}
        self.value = {key: value for key, value in record.value.items() if key not in named}
        for ours, theirs in columns.items():
            if theirs in record.value:
                self.value[ours] = record.value[theirs]

    def place(self, *keys: str | int) -> Place:
        """Return the place, by the file's own names."""
        return self._record.place(*self._theirs(keys))

    def around(self, *keys: str | int) -> str:
        """Return the text around the place."""
        return self._record.around(*self._theirs(keys))

    def _theirs(self, keys: tuple[str | int, ...]) -> tuple[str | int, ...]:
        return (self._columns.get(str(keys[0]), keys[0]), *keys[1:]) if keys else keys

    @property
    def more(self) -> bool:
        """Whether a document goes on in the next row."""
        return bool(getattr(self._record, "more", False))
