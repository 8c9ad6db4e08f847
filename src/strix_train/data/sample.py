"""An even sample of a stream of unknown length, the same on every machine."""

from __future__ import annotations

from typing import Generic, TypeVar

Item = TypeVar("Item")
_ALL = 1 << 64
# 2^64 divided by the golden ratio: its multiples spread evenly, whatever period the stream itself has
_STEP = 0x9E3779B97F4A7C15


class Sample(Generic[Item]):
    """Keeps items whose number, spread over a range, falls below a limit that is halved whenever `most` are kept."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.seen = 0
        self._limit = _ALL
        self._kept: list[tuple[int, Item]] = []

    @property
    def items(self) -> list[Item]:
        """What is kept, in the order of the stream."""
        return [item for _, item in self._kept]

    def add(self, item: Item) -> None:
        """Take the next item, or pass over it."""
        key = self.seen * _STEP % _ALL
        self.seen += 1
        if key >= self._limit:
            return
        self._kept.append((key, item))
        if len(self._kept) > self.most:
            self._limit //= 2
            self._kept = [each for each in self._kept if each[0] < self._limit]
