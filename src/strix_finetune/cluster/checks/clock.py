"""The clocks. Training asks no other node for the time, and the times of logs are read side by side.

torchrun's c10d rendezvous does ask, where somebody starts that by hand: it tells the living from the dead by the time
of day that each node writes.
"""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.cluster.facts import Found
from strix_finetune.cluster.findings import Finding

# torch.distributed.elastic's c10d rendezvous: a node whose beat, written every 5 s in its own time, is older than
# 15 s for a reader is taken for dead
DEAD_SECONDS = 10.0
WARNS_SECONDS = 1.0
_CURE = "set it by NTP: `sudo timedatectl set-ntp true`, or start chrony"


def check(found: Found) -> Iterator[Finding]:
    measured = [node for node in found.nodes if node.clock_seconds is not None]
    if len(measured) < 2:
        return
    head = measured[0]
    worst = 0.0
    fine = True
    for node in measured[1:]:
        off = (node.clock_seconds or 0.0) - (head.clock_seconds or 0.0)
        exact = node.clock_exact + head.clock_exact
        worst = max(worst, abs(off))
        if abs(off) - exact < WARNS_SECONDS:
            continue
        fine = False
        how = "ahead of" if off > 0 else "behind"
        says = f"its clock is {_words(abs(off))} {how} that of {head.name}"
        says += ", and so are the times of its logs"
        if abs(off) - exact >= DEAD_SECONDS:
            says += "; torchrun's c10d rendezvous, started by hand, would take living nodes for dead"
        data = {"ahead_seconds": round(off, 3), "exact_seconds": round(exact, 3)}
        yield Finding("clock", "warning", (node.name,), says, _CURE, data)
    if fine:
        says = f"the clocks differ by less than {max(worst, 0.001):.3f} s"
        yield Finding("clock", "ok", (), says, data={"seconds": round(worst, 3)})


def _words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
