"""Pinned memory of the host that is taken once and used again, whatever is put into it.

What a pass puts away is wanted in reverse order, so that each piece of memory is a stack. PyTorch's own pinned memory
is kept by sizes, all of which rows of mixed lengths would need in turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# Bytes: where tensors begin; the smallest piece, and the largest but for large tensors, of which each holds several.
_EVEN = 512
_LEAST, _MOST = 2**26, 2**30
_SEVERAL = 8


@dataclass(slots=True)
class Budget:
    """Bytes of host memory that may be taken, and those that are."""

    most: int
    taken: int = 0

    @property
    def left(self) -> int:
        """Bytes that may still be taken."""
        return max(0, self.most - self.taken)

    def take(self, size: int) -> bool:
        """Take `size` bytes, all of them or, where there are fewer, none; return whether they were taken."""
        if size > self.left:
            return False
        self.taken += size
        return True

    def give(self, size: int) -> None:
        """Give bytes back that were taken."""
        self.taken -= size


@dataclass(slots=True, eq=False)
class Region:
    """A part of a piece, from byte `start`."""

    piece: Piece
    start: int
    free: bool = False

    def give(self) -> None:
        """Give it back; what lies below it in its piece can be taken again once all above is free."""
        self.free = True
        regions = self.piece.regions
        while regions and regions[-1].free:
            self.piece.top = regions.pop().start


@dataclass(slots=True, eq=False)
class Piece:
    """Pinned `memory`, in bytes; `top`: where its free part begins."""

    memory: Any
    top: int = 0
    regions: list[Region] = field(default_factory=list)


class Arena:
    """Pieces of pinned memory, within a budget."""

    def __init__(self, budget: Budget) -> None:
        self.budget, self.pieces = budget, list[Piece]()

    def left(self, most: int) -> int:
        """Return the bytes that can still be put here, of tensors of at most `most` bytes, however they come.

        A piece that has no room for one of them is full but for less than that.
        """
        size = _even(most)
        free = [len(each.memory) - each.top for each in self.pieces]
        wanted = self._wanted(size)
        free += [wanted] * (self.budget.left // wanted)
        return sum(max(0, each - size) for each in free)

    def take(self, like: Any) -> tuple[Region, Any] | None:
        """Return room for a tensor and a tensor there of its shape and type; None where there is no room."""
        size = _even(int(like.numel() * like.element_size()))
        piece = next((each for each in self.pieces if len(each.memory) - each.top >= size), None) or self._more(size)
        if piece is None:
            return None
        region = Region(piece, 0)
        piece.regions.append(region)  # from here on, whatever is given back lies below it
        region.start = piece.top
        piece.top = region.start + size
        flat = piece.memory[region.start : region.start + like.numel() * like.element_size()]
        return region, flat.view(like.dtype).view(like.shape)

    def _wanted(self, size: int) -> int:
        """Return the bytes of a new piece: of all before it, so that they are few, or of several such tensors.

        Where the budget has less, those of fewer tensors, of one at least.
        """
        whole = sum(len(each.memory) for each in self.pieces)
        wanted = max(_SEVERAL * power(size), min(_MOST, max(_LEAST, power(whole))))
        while wanted > max(self.budget.left, power(size)):
            wanted //= 2
        return wanted

    def _more(self, size: int) -> Piece | None:
        """Return a new piece for a tensor of `size` bytes and others, or None where the host has no room."""
        wanted = self._wanted(size)
        if not self.budget.take(wanted):
            return None
        memory = pinned(wanted)
        if memory is None:
            self.budget.most = self.budget.taken = self.budget.taken - wanted  # nor will it have any later
            return None
        self.pieces.append(Piece(memory))
        return self.pieces[-1]


def _even(size: int) -> int:
    return -(-size // _EVEN) * _EVEN


def power(size: int) -> int:
    """Return the bytes that pinned memory of `size` bytes takes: PyTorch rounds it up to powers of two."""
    return 1 << max(0, size - 1).bit_length()


def pinned(size: int) -> Any:
    """Return pinned memory, in bytes, or None where the host has none."""
    import torch

    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    except RuntimeError:
        return None
