"""What the layers of one pass share, what a slice of rows is, and what it leaves for its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from strix_train.lean.attend import Choice, Seen
from strix_train.lean.keep import Keep
from strix_train.lean.stash import Stash, Ticket


@dataclass(slots=True)
class Pass:
    """What all layers of one forward pass share. `cos`, `sin`: (positions, width), or (rows, positions, width).

    `seen`: one for each slice of rows. `steps`: the module of the small steps. `keep`: what layers keep, where
    attention has a kernel that can go on with it.
    """

    cos: Any
    sin: Any
    seen: list[Seen]
    step: int
    steps: Any
    stash: Stash
    kernels: Choice
    keep: Keep = Keep.INPUT

    def slices(self, rows: int) -> Iterator[Slice]:
        """Yield slices of rows."""
        for number, start in enumerate(range(0, rows, self.step)):
            some = slice(start, min(rows, start + self.step))
            cos, sin = (
                each.reshape(-1, each.shape[-1]) if len(each) == 1 else each[some].reshape(-1, each.shape[-1])
                for each in (self.cos, self.sin)
            )
            yield Slice(some, self.seen[number if len(self.seen) > 1 else 0], (cos, sin))


@dataclass(frozen=True, slots=True)
class Slice:
    """Some rows, what their tokens see, and their turns, each (positions, width)."""

    rows: slice
    seen: Seen
    turns: tuple[Any, Any]


@dataclass(slots=True)
class Kept:
    """What one slice of rows left for its gradient, in the order in which it went away: what is needed first went last.

    `x`: its input. `seen`: what attention gave and its kernel needs, and the `heads` that it took. `middle`: the sum
    behind attention. `lows`: what the last adapter of the gated part has in its own middle, of few tokens at a time; it
    is small, and stays.
    """

    x: Ticket
    seen: Ticket | None = None
    middle: Ticket | None = None
    lows: list[Any] = field(default_factory=list)
    heads: bool = False


@dataclass(slots=True)
class Heads:
    """Queries, keys and values, (rows, tokens, heads, width of a head), and as they were before their norms, flat.

    `low`: what all adapters made of the normed input, where that was computed just now.
    """

    made: list[Any]
    raw: list[Any]
    low: Any = None
