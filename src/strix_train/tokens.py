"""The rows of a run as tokens: encoded, cut, counted, packed on request, and held as flat arrays."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from strix_train.data.mix import Rows
from strix_train.data.rows import Answered, Document, Preference, Rated, Row
from strix_train.encode import IGNORED, Encoded, Text, encoder
from strix_train.errors import InputError, Problem
from strix_train.methods import Job


@dataclass(slots=True)
class Column:
    """Lists of whole numbers, one a row, end to end in one array of 32 bits."""

    values: array[int] = field(default_factory=lambda: array("i"))
    ends: array[int] = field(default_factory=lambda: array("q", [0]))

    def append(self, row: Iterable[int]) -> None:
        """Add one row."""
        self.values.extend(row)
        self.ends.append(len(self.values))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> array[int]:
        return self.values[self.ends[index] : self.ends[index + 1]]

    def lengths(self) -> list[int]:
        """Return the length of each row."""
        return [b - a for a, b in zip(self.ends, self.ends[1:], strict=False)]


@dataclass(slots=True)
class Counts:
    """What became of the rows. `lost`: those without an answer within max_length; `cut`: others that are cut."""

    rows: int = 0
    learned: int = 0
    tokens: int = 0
    longest: int = 0
    longest_seen: int = 0
    lost: int = 0
    cut: int = 0

    def take(self, row: Encoded) -> bool:
        """Count a row, and say whether it teaches anything."""
        self.longest_seen = max(self.longest_seen, row.length)
        learned = row.learned
        if not learned:
            self.lost += 1
            return False
        self.rows += 1
        self.learned += learned
        self.tokens += len(row.ids)
        self.longest = max(self.longest, len(row.ids))
        self.cut += row.cut
        return True


def dataset(columns: dict[str, Column], plain: dict[str, Sequence[Any]] | None = None) -> Any:
    """Return columns as a Dataset of the datasets library, without copying the tokens."""
    import pyarrow as pa
    from datasets import Dataset
    from datasets.table import InMemoryTable

    made: dict[str, Any] = {}
    for name, column in columns.items():
        values = pa.Array.from_buffers(pa.int32(), len(column.values), [None, pa.py_buffer(column.values)])
        ends = pa.Array.from_buffers(pa.int64(), len(column.ends), [None, pa.py_buffer(column.ends)])
        made[name] = pa.LargeListArray.from_arrays(ends, values)
    return Dataset(InMemoryTable(pa.table({**made, **(plain or {})})))


class Encoder:
    """Encodes the rows of a job, telling what max_length does to them."""

    def __init__(self, job: Job, text: Text) -> None:
        self.job, self.text = job, text
        recipe = job.plan.loaded.recipe
        self.most = recipe.schedule.max_length
        self._encode = encoder(
            text, template=job.plan.template.mode, responses_only=recipe.responses_only, max_length=self.most
        )
        if job.plan.template.mode == "chat" and not text.has_template:
            place = job.plan.loaded.place("data", "template")
            raise InputError(Problem("the model has no chat template", place, "write template: plain, or simple"))

    def one(self, row: Answered) -> Encoded:
        """Return one row as tokens."""
        return self._encode(row)

    def answers(self, rows: Rows, what: str) -> dict[str, Column]:
        """Return rows with answers as columns input_ids and labels."""
        ids, labels, counts = Column(), Column(), Counts()
        for row in self._each(rows):
            if counts.take(row):
                ids.append(row.ids)
                labels.append(row.labels)
        self._tell(counts, what)
        return {"input_ids": ids, "labels": labels}

    def _each(self, rows: Rows) -> Iterator[Encoded]:
        """Encode rows; one that comes several times in a row is encoded once."""
        before: tuple[Row, Encoded] | None = None
        for row in rows:
            assert not isinstance(row, (Document, Preference, Rated))  # the formats of a method decide that
            if before is None or before[0] is not row:
                before = (row, self._encode(row))  # type: ignore[arg-type]
            yield before[1]

    def pairs(self, rows: Rows, what: str) -> dict[str, Column]:
        """Return preferences as columns prompt_ids, chosen_ids and rejected_ids, the prompt being what both share."""
        columns = {name: Column() for name in ("prompt_ids", "chosen_ids", "rejected_ids")}
        counts = Counts()
        for row in rows:
            assert isinstance(row, Preference)
            chosen, rejected = self._encode(row.chosen), self._encode(row.rejected)
            longer = max(chosen, rejected, key=lambda each: each.length)
            if not (chosen.learned and rejected.learned):
                counts.lost += 1
                counts.longest_seen = max(counts.longest_seen, longer.length)
                continue
            counts.take(longer)
            start = min(chosen.first, rejected.first, _common(chosen.ids, rejected.ids))
            columns["prompt_ids"].append(chosen.ids[:start])
            columns["chosen_ids"].append(chosen.ids[start : chosen.end])
            columns["rejected_ids"].append(rejected.ids[start : rejected.end])
        self._tell(counts, what)
        return columns

    def marked(self, rows: Rows, what: str) -> tuple[dict[str, Column], list[bool]]:
        """Return marked rows as columns prompt_ids and completion_ids, and their marks."""
        columns, good, counts = {"prompt_ids": Column(), "completion_ids": Column()}, [], Counts()
        for row in rows:
            assert isinstance(row, Rated)
            found = self._encode(row.row)
            if counts.take(found):
                columns["prompt_ids"].append(found.ids[: found.first])
                columns["completion_ids"].append(found.ids[found.first : found.end])
                good.append(row.good)
        self._tell(counts, what)
        return columns, good

    def whole(self, what: str, kept: int, lost: int) -> None:
        """Tell how many rows are used that must not be cut. Raises InputError where none is left."""
        place = self.job.plan.loaded.place("schedule", "max_length")
        if not kept:
            what = f"every row is longer than max_length ({self.most} tokens)"
            raise InputError(Problem(what, place, "raise schedule.max_length"))
        self.job.console.fact(what, str(kept))
        if lost:
            self.job.console.fact("warning", f"{lost} rows were left out: they are longer than max_length ({place})")

    def _tell(self, counts: Counts, what: str) -> None:
        place = self.job.plan.loaded.place("schedule", "max_length")
        if not counts.rows:
            raise InputError(
                Problem(
                    f"every row's answer lies beyond max_length ({self.most} tokens), so all labels are masked and "
                    "nothing would be learned",
                    place,
                    f"the longest row has {counts.longest_seen} tokens; raise schedule.max_length",
                )
            )
        fact = self.job.console.fact
        fact(
            what,
            f"{counts.rows}: {counts.learned:,} of {counts.tokens:,} tokens count in the loss; "
            f"the longest row has {counts.longest}",
        )
        if counts.lost:
            fact("warning", f"{counts.lost} rows were left out: max_length cuts their whole answer away ({place})")
        if counts.cut:
            fact("warning", f"{counts.cut} rows lose a part of their answer to max_length ({place})")


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how long two rows begin alike."""
    return next((index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def blocks(rows: Iterable[Document], text: Text, size: int, *, joined: bool) -> Iterator[list[int]]:
    """Yield plain text as rows of at most `size` tokens, each document ended by the model's end token.

    `joined`: documents follow one another without gaps, so that only the last row is shorter; else each begins anew.
    """
    waiting: list[int] = []
    inside = False
    for row in rows:
        ids, _ = text.tokens((text.bos if not inside else "") + row.text)
        waiting += ids
        inside = not row.ends
        if row.ends and text.eos and not (ids and text.is_end(ids[-1])):
            waiting += text.tokens(text.eos)[0]
        full = len(waiting) // size * size
        for start in range(0, full, size):
            yield waiting[start : start + size]
        del waiting[:full]
        if row.ends and not joined and waiting:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def pack(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Return the numbers of rows that go together into bins of `size`, the longest first, each where it fits best."""
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    bins: list[list[int]] = []
    spaces: list[tuple[int, int]] = []
    for index in order:
        at = bisect_left(spaces, (lengths[index], -1))
        if at == len(spaces):
            bins.append([index])
            space, number = size - lengths[index], len(bins) - 1
        else:
            space, number = spaces.pop(at)
            bins[number].append(index)
            space -= lengths[index]
        if space > 0:
            insort(spaces, (space, number))
    return bins


def packed(columns: dict[str, Column], size: int) -> dict[str, Column]:
    """Return rows packed into bins of `size` tokens; position_ids begin anew with each row inside a bin.

    The first token of a row is no label: it would be predicted from the end of the row before it.
    """
    ids, labels = columns["input_ids"], columns["labels"]
    made = {name: Column() for name in ("input_ids", "labels", "position_ids")}
    for numbers in pack(ids.lengths(), size):
        whole: dict[str, array[int]] = {name: array("i") for name in made}
        for number in numbers:
            row = ids[number]
            whole["input_ids"].extend(row)
            whole["labels"].extend([IGNORED, *labels[number][1:]])
            whole["position_ids"].extend(range(len(row)))
        for name, values in whole.items():
            made[name].append(values)
    return made
