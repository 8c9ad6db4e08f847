"""Why training on several machines ended: pure, given how each node ended and what it said last.

The node that ended first is often not the one that is to blame: when a machine loses its power, the others find that
their connections are gone. So all are looked at, and what explains more goes before what follows from it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from strix_finetune.cluster.nodes import Node
from strix_finetune.errors import Problem
from strix_finetune.signals import describe_exit, signal_name

How = Literal["ended", "lost", "stopped"]
INTERRUPTED = 130
# how `train` begins the sentence that a run ends with; torchrun puts the rank in front of what its processes say
_SENTENCE = re.compile(r"^(?:\[\w*?(\d+)\]:)?train: (?:rank (\d+): )?(.+)$")
# what `train` says of a fault that is another process's
_OTHERS = re.compile(r"^process \d+(?: \(on [^)]*\))? (?:ended without a word|failed:|was interrupted)")


@dataclass(frozen=True, slots=True)
class End:
    """How a node ended. `at`: seconds since the start. `code` of its container, None where nobody knows it.

    `how`: by itself, its connection was lost (`why` says how), or stopped by us because of another one. `last`: the
    last lines that it printed. `rank`: of its first process.
    """

    node: Node
    at: float
    how: How = "ended"
    code: int | None = None
    why: str = ""
    out_of_memory: bool = False
    last: tuple[str, ...] = ()

    @property
    def well(self) -> bool:
        return self.how == "ended" and self.code == 0


def exit_code(ends: Sequence[End], *, interrupted: bool) -> int:
    """0 when all are done, 130 when it was interrupted or every process says so, 2 when the input is wrong, else 1."""
    if all(end.well for end in ends):
        return 0
    codes = [end.code for end in ends if not end.well]
    if interrupted or (codes and all(code == INTERRUPTED for code in codes)):
        return INTERRUPTED
    return 2 if any(end.code == 2 for end in ends) and not any(end.how == "lost" for end in ends) else 1


def cause(ends: Sequence[End]) -> Problem | None:
    """The one thing that went wrong, as a sentence; None when nothing did."""
    bad = [end for end in ends if not end.well and end.how != "stopped"]
    if not bad:
        return None
    return _sentence(min(bad, key=lambda end: (_weight(end), end.at)))


def _weight(end: End) -> int:
    """What explains more comes first."""
    if end.out_of_memory:
        return 0
    if end.how == "lost":
        return 1
    if end.code is not None and signal_name(end.code) and end.code != INTERRUPTED:
        return 2
    said = sentence(end.last)
    if said and not _OTHERS.match(said[1]):
        return 3
    # a crash without a sentence of `train`'s, then what is said of another one
    return 4 if not said else 5


def _sentence(end: End) -> Problem:
    node = end.node
    name = f"node {node.name}"
    if end.how == "lost":
        return Problem(f"{name} was lost: {end.why}", node.place, "check its power and its cable")
    assert end.code is not None
    if end.out_of_memory:
        cure = "lower schedule.batch or max_length, or free memory there"
        return Problem(f"{name} ran out of memory, and the kernel ended rank {node.rank}", node.place, cure)
    said = sentence(end.last)
    if signal_name(end.code) and end.code != INTERRUPTED and not said:
        return Problem(f"{name}: training was ended by {describe_exit(end.code)}", node.place)
    if said:
        rank, text = said
        who = f"rank {rank}, " if rank is not None else ""
        return Problem(f"{who}{name}: {text}", node.place)
    words = next((line.strip() for line in reversed(end.last) if line.strip()), "")
    tail = f", and said last: {words[:300]}" if words else ", without a word"
    return Problem(f"{name}: training ended with {describe_exit(end.code)}{tail}", node.place)


def sentence(last: Sequence[str]) -> tuple[int | None, str] | None:
    """The rank, where it says one, and the last sentence of `train` among these lines."""
    for line in reversed(last):
        if (found := _SENTENCE.match(line.strip())) and not found[3].startswith(("SIGINT", "SIGTERM")):
            rank = found[2] or found[1]
            return (int(rank) if rank else None), found[3]
    return None
