"""An even sample of a stream of unknown length, the same on every machine."""

from __future__ import annotations

from typing import Generic, TypeVar

Item = TypeVar("Item")


class Sample(Generic[Item]):
    """Keeps every n-th item, n doubling whenever `most` are kept: at least most / 2 of a long stream stay."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.items: list[Item] = []
        self.seen = 0
        self._every = 1

    def add(self, item: Item) -> None:
        """Take the next item, or pass over it."""
        if self.seen % self._every == 0:
            self.items.append(item)
            if len(self.items) > self.most:
                del self.items[1::2]
                self._every *= 2
        self.seen += 1
