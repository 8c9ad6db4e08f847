"""Which rows of several sets are trained on, how often, and which are kept for evaluation.

All of it follows from the rows' contents and the seed, so every node and every resumed run chooses the same.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from strix_train.data.load import DataSet
from strix_train.data.rows import Row

Key = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of several sets. `times`: for each set, how often each of its rows is taken; None: each once."""

    sets: tuple[DataSet, ...]
    times: tuple[bytes | None, ...]

    def __len__(self) -> int:
        return sum(
            len(each) if times is None else sum(times) for each, times in zip(self.sets, self.times, strict=True)
        )

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows, set by set; a row that is taken several times comes several times in a row."""
        for each, times in zip(self.sets, self.times, strict=True):
            if times is None:
                yield from each
                continue
            for row, count in zip(each, times, strict=True):
                for _ in range(count):
                    yield row

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows at once, for small sets."""
        return tuple(self)

    @property
    def fingerprint(self) -> str:
        """Return 64 hex digits that are the same where the same rows are taken in the same order."""
        found = hashlib.sha256()
        for each, times in zip(self.sets, self.times, strict=True):
            found.update(each.digests.tobytes())
            found.update(times or b"once")
        return found.hexdigest()


def whole(sets: Sequence[DataSet]) -> Rows:
    """Return all rows of the sets."""
    return Rows(tuple(sets), (None,) * len(sets))


def divide(
    sets: Sequence[DataSet], weights: Sequence[float], split: float | None, seed: int
) -> tuple[Rows, Rows | None]:
    """Return the rows to train on and those to evaluate on (None without `split`).

    `weights`: how often each row of a set is taken; a fraction takes that share of the rows. `split`: below 1 a share
    of all rows, else their number; rows that say the same stay on the same side, so that none is in both.
    """
    key = _keyed(seed)
    held = _held(sets, split, key) if split else frozenset()
    times: list[bytes | None] = []
    for each, weight in zip(sets, weights, strict=True):
        if weight == 1 and not held:
            times.append(None)
            continue
        free = [index for index, content in enumerate(each.digests) if content not in held]
        often, part = int(weight), weight - int(weight)
        taken = array("B", bytes(len(each)))
        for index in free:
            taken[index] = often
        for index in sorted(free, key=lambda at: (key(each.digests[at] ^ at), at))[: round(part * len(free))]:
            taken[index] += 1
        times.append(taken.tobytes())
    train = Rows(tuple(sets), tuple(times))
    if not split:
        return train, None
    kept = tuple(bytes(content in held for content in each.digests) for each in sets)
    return train, Rows(tuple(sets), kept)


def _held(sets: Sequence[DataSet], split: float, key: Key) -> frozenset[int]:
    """Return the contents that are kept for evaluation: the smallest by their key, until there are enough rows."""
    counts: dict[int, int] = {}
    for each in sets:
        for content in each.digests:
            counts[content] = counts.get(content, 0) + 1
    total = sum(counts.values())
    wanted = max(1, round(split * total)) if split < 1 else int(split)
    held: set[int] = set()
    got = 0
    for content in sorted(counts, key=lambda each: (key(each), each)):
        if got >= wanted:
            break
        held.add(content)
        got += counts[content]
    return frozenset(held)


def _keyed(seed: int) -> Key:
    """Return a function that orders contents by chance, the same for the same seed."""
    salt = seed.to_bytes(8, "little")

    def key(content: int) -> int:
        raw = (content & (2**64 - 1)).to_bytes(8, "little")
        return int.from_bytes(hashlib.blake2b(raw, digest_size=8, key=salt).digest(), "little")

    return key
