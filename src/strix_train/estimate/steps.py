"""Time of an optimizer step on several machines: what each computes, what it sends, and what of that is hidden.

A collective takes its bytes over the link's rate, and for each of its hops half a round trip and what the software
takes. What is sent while something computes is hidden, but not all of it: a machine that sends computes more slowly,
and a first layer waits. docs/clusters.md holds the model against what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from strix_train.estimate import sharing as share
from strix_train.estimate import speed
from strix_train.estimate.links import Link
from strix_train.estimate.machines import Machine
from strix_train.estimate.memory import Wish
from strix_train.estimate.sharing import Sharing, Traffic

# Seconds that a collective takes beside the wire, and the share of the ideal that is good enough.
_CALL = 30e-6
GOOD = 0.9
# Two ranks of gloo gather in one direction after the other, nearly: times of the wire, measured; four take it once
# (docs/clusters.md).
GLOO_GATHER = 1.75


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds. `compute`: of one machine alone, which is the ideal. `sending`: on the wire. `seconds`: of the step."""

    compute: float
    sending: float
    seconds: float

    @property
    def efficiency(self) -> float:
        """Share of the ideal, in which n machines do n times the work of one in the same time."""
        return self.compute / self.seconds if self.seconds else 1.0


def of(wish: Wish, machine: Machine, sharing: Sharing, ranks: int, link: Link) -> Step | None:
    """Return the step of `ranks` machines with one device each, None where nothing is known about their speed."""
    pace = speed.of(share.shared(wish, sharing), machine)
    if pace is None:
        return None
    sent, gather = share.traffic(wish, sharing, ranks), 1.0 if machine.is_gpu or ranks > 2 else GLOO_GATHER
    return step(
        pace.seconds, forward(wish), wish.accumulation, sent, ranks, link, overlap=overlap(machine), gather=gather
    )


def overlap(machine: Machine) -> float:
    """Return the share of the shorter of computing and sending that is hidden behind the other.

    On a CPU what sends takes the cores that compute; so it does a little where the GPU lives in the host's memory.
    """
    return 0.8 if machine.is_gpu and not machine.unified else 0.5 if machine.is_gpu else 0.0


def step(
    compute: float,
    first: float,
    accumulation: int,
    sent: Traffic,
    ranks: int,
    link: Link,
    *,
    overlap: float,
    gather: float = 1.0,
) -> Step:
    """Return the step of what computes for `compute` seconds in all, `first` of each pass being its forward part.

    `overlap`: the share that is hidden, from 0 to 1. `gather`: times of the wire that gathering takes.
    """
    one = compute / accumulation
    parts = zip((sent.forward, sent.backward, sent.once), sent.gathers, sent.messages, strict=True)
    there, back, once = (wire(each + (gather - 1) * some, count, ranks, link) for each, some, count in parts)
    passes = _beside(one * first, there, overlap) + _beside(one * (1 - first), back, overlap)
    # what is sent once goes beside the last backward pass, or what that has left of itself
    left = max(0.0, one * (1 - first) - back)
    seconds = accumulation * passes + once - overlap * min(once, left)
    return Step(compute, accumulation * (there + back) + once, seconds)


def forward(wish: Wish) -> float:
    """Return the share of a pass that is its forward part: one product of three, or two where only adapters learn."""
    return 1 / (2 + (wish.adapter == "full") + wish.recompute)


def enough(wish: Wish, machine: Machine, sharing: Sharing, ranks: int, link: Link) -> int | None:
    """Return the least accumulation with which a step reaches GOOD of the ideal; None where no accumulation does.

    It only helps where something is sent once a step; where every pass gathers the weights, more rows a pass do.
    """
    for accumulation in _more(wish.accumulation):
        found = of(replace(wish, accumulation=accumulation), machine, sharing, ranks, link)
        if found is None:
            return None
        if found.efficiency >= GOOD:
            return accumulation
    return None


def _more(least: int) -> Iterator[int]:
    """Yield numbers of passes from `least` on: each one at first, then about a tenth more each time."""
    value = least
    while value <= 65536:
        yield value
        value = max(value + 1, ceil(value * 1.1) if value > 16 else 0)


def wire(sent: float, messages: int, ranks: int, link: Link) -> float:
    """Return the seconds that bytes take in so many collectives of n-1 hops each."""
    return sent / link.bytes_per_s + messages * ((ranks - 1) * link.round_trip / 2 * 1e-6 + _CALL)


def _beside(computing: float, sending: float, overlap: float) -> float:
    """Return the time of two things at once."""
    return max(computing, sending) + (1 - overlap) * min(computing, sending)
