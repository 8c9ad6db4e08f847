"""The clocks. Training itself asks none of another node, but torchrun's rendezvous tells the living from the dead by
the time of day that each node writes, and torchrun is what starts several processes on a node.
"""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.cluster.facts import Found
from strix_finetune.cluster.findings import Finding

# torch.distributed.elastic's c10d rendezvous: a node whose beat, written every 5 s in its own time, is older than
# 15 s for a reader is taken for dead
FAILS_SECONDS = 10.0
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
        fails = abs(off) - exact >= FAILS_SECONDS and _by_torchrun(found)
        says += ", so the rendezvous takes living nodes for dead" if fails else ", and so are the times of its logs"
        data = {"ahead_seconds": round(off, 3), "exact_seconds": round(exact, 3)}
        yield Finding("clock", "failure" if fails else "warning", (node.name,), says, _CURE, data)
    if fine:
        says = f"the clocks differ by less than {max(worst, 0.001):.3f} s"
        yield Finding("clock", "ok", (), says, data={"seconds": round(worst, 3)})


def _by_torchrun(found: Found) -> bool:
    """Whether any node runs several processes: one meets the others without torchrun."""
    told = {node.name: len(node.gpus) for node in found.nodes}
    return any((node.processes or told.get(node.name, 0)) > 1 for node in found.cluster.nodes)


def _words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
