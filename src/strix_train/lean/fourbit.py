"""Weights of 4 bits as bitsandbytes stores them, so that any part of one can be made without the rest.

The layout (NF4, and its scales in 8 bits once more) is that of arXiv:2305.14314, section 3: a number is an index into
16 values, times the scale of its block of 64; scales are indices into 256 values, times the scale of 256 of them, plus
the mean that was taken from all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Nested:
    """What a scale of one byte stands for: `code` (256), times `outer` of its `group`, plus the scalar `offset`."""

    code: Any
    outer: Any
    offset: Any
    group: int


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight (rows, columns), two numbers a byte, the first in its upper half.

    `block`: numbers of a row that share a scale. `code`: the 16 values. `scales` (rows x columns / block): in 32 bits,
    or in bytes where they are `nested`.
    """

    data: Any
    rows: int
    columns: int
    block: int
    code: Any
    scales: Any
    nested: Nested | None = None

    def like(self, other: Packed) -> bool:
        """Whether another weight has the same shape, and is stored in the same way."""
        groups = [None if each.nested is None else each.nested.group for each in (self, other)]
        mine, theirs = ((each.rows, each.columns, each.block) for each in (self, other))
        return mine == theirs and groups[0] == groups[1]


def of(weight: Any) -> Packed | None:
    """Return what a weight of bitsandbytes holds, or None where it is stored in any other way."""
    import torch

    state: Any = getattr(weight, "quant_state", None)
    shape = tuple(getattr(state, "shape", None) or ())
    if len(shape) != 2 or getattr(state, "quant_type", None) != "nf4":
        return None
    block = int(state.blocksize)
    data = weight.data.view(torch.uint8)
    if shape[1] % block or data.numel() * 2 != shape[0] * shape[1] or state.absmax.numel() * block != data.numel() * 2:
        return None  # a block goes on in the next row, or this is a piece of the weight
    nested = None
    if state.nested:
        inner = state.state2
        nested = Nested(inner.code, inner.absmax, state.offset, int(inner.blocksize))
    return Packed(data, *shape, block, state.code, state.absmax, nested)
