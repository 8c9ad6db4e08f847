"""How much a layer keeps for its gradient: more of it is computed once only, and has to go to host memory and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from strix_train.lean.parts import Parts

# What the pace is measured with: bytes that are copied, and the side of square matrices.
_COPIED, _SIDE = 2**26, 4096
# How long a layer takes, for each second of its products: attention and the small steps come on top of them.
_ALL = 1.3


class Keep(IntEnum):
    """What is kept; each one with all before it."""

    INPUT = 0  # of the layer
    ATTENTION = 1  # what it gave, and the sum behind it
    HEADS = 2  # queries, keys and values


@dataclass(frozen=True, slots=True)
class Pace:
    """Bytes a second from the GPU to the host, and operations a second of products."""

    copies: float
    products: float


def measure(device: Any, dtype: Any) -> Pace:
    """Measure a GPU and its way to the host, in a few milliseconds."""
    import torch

    def seconds(work: Any, times: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        work()
        begin.record()
        for _ in range(times):
            work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000 / times

    # random numbers: others take less power, and a GPU that has some left runs faster
    chance = torch.Generator(device=device).manual_seed(1)
    one, other = (torch.randn(_SIDE, _SIDE, dtype=dtype, device=device, generator=chance) for _ in range(2))
    here = torch.empty(_COPIED, dtype=torch.uint8, device=device)
    there = torch.empty(_COPIED, dtype=torch.uint8, pin_memory=True)
    copied = seconds(lambda: there.copy_(here, non_blocking=True), 2)
    return Pace(_COPIED / copied, 2.0 * _SIDE**3 / seconds(lambda: one @ other, 4))


def numbers(own: Parts, hidden: int) -> tuple[tuple[int, ...], ...]:
    """Return how many numbers of one token go away together, for each of `Keep`, those of the ones before left out."""
    seen, values = own.heads * own.width, own.groups * own.width
    sums = 2 * own.heads  # of attention, in 32 bits
    return (hidden,), (hidden, seen, sums), (seen, values, values)


def hurry(pace: Pace, own: Parts) -> float:
    """Return the bytes that leave the GPU while one layer is computed for one token."""
    stored = [getattr(each.weight, "quant_state", each.weight) for each in own.projections()]
    weights: int = sum(math.prod(each.shape) for each in stored)
    return _ALL * 2.0 * weights / pace.products * pace.copies


def choose(
    wanted: Sequence[Sequence[int]],
    layers: int,
    slices: int,
    tokens: int,
    size: int,
    room: Callable[[int], int],
    leaves: float,
) -> Keep:
    """Return the most that finds room, and leaves the GPU while it computes.

    `wanted`: see `numbers`. `tokens` of one of the `slices` of rows, numbers of `size` bytes. `room`: bytes of the
    host for tensors of at most so many bytes.
    `leaves`: see `hurry`.
    """
    found, taken, moved, largest = Keep.INPUT, 0, 0, 0
    for keep, more in zip(Keep, wanted, strict=True):
        taken += layers * slices * tokens * size * sum(more)
        moved += sum(more) * size
        largest = max(largest, *more)
        if taken <= room(largest * tokens * size) and moved <= leaves:
            found = keep
    return found
