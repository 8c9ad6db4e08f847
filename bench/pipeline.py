"""A pipeline of four processes, each with some layers of a small Llama, beside DDP, FSDP2 and one process alone.

First the pipeline is proven to learn what one process learns. Then each way to share the same rows is timed over the
same limited wires, its sent bytes and memory counted. Last, stages that wait instead of computing show what torch's
schedules make of a wire where each stage has a machine of its own, which four processes on few cores cannot.

Needs root, iproute2 (bench.wires), and torch: STRIX_TRAIN_PYTHON names a Python that has it. What is printed is for
docs/clusters.md; a busy machine computes more slowly.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench import cluster_cost, pipeline_tables, wires
from bench.wires import Ranks
from strix_train.estimate import pipeline, sharing, steps
from strix_train.estimate.links import Link
from strix_train.estimate.memory import Wish
from strix_train.estimate.sharing import Sharing

WORKER = "bench.pipeline_worker"
STAGES = 4
# A pass of any other way has as many rows as cluster_cost's, and each process has one pass.
ROWS = STAGES * cluster_cost.ROWS * 2
GBITS = (0.1, 0.02)
KINDS, MICROBATCHES = ("1f1b", "gpipe"), (4, 8)
TOLERANCE = 1e-4
# The quickest of so many counts: whatever else a machine does only ever makes steps longer.
STEPS = 3
# Of stages that wait: seconds of a microbatch forward and backward, and its bytes at a border: none, and 0.1 s of them.
WAIT, WAIT_GBIT, WAIT_BYTES = (0.1, 0.2), 0.1, (4000, 1_250_000)


@dataclass(frozen=True)
class Case:
    """A way to share: `kind` and `microbatches` of a pipeline, else `sharing`."""

    way: str
    sharing: Sharing | None = None
    kind: str = ""
    microbatches: int = 0

    @property
    def title(self) -> str:
        """The way in words."""
        return f"{self.way} {self.kind} {self.microbatches}" if self.kind else self.way


CASES = (
    Case("alone", "none"),
    Case("ddp", "ddp"),
    Case("fsdp", "fsdp"),
    *(Case("pipeline", kind=kind, microbatches=count) for kind in KINDS for count in MICROBATCHES),
)


def apart(found: Mapping[str, Any]) -> float:
    """Return how far a pipeline's training was from that of one process.

    The largest difference of a loss, of a norm of gradients as a share of it, and of a weight of the adapter.
    """
    gaps = [
        *(abs(one - other) for one, other in zip(*found["losses"], strict=True)),
        *(abs(one / other - 1) for one, other in zip(*found["norms"], strict=True)),
        float(found["apart"]),
    ]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps)


def prove(ranks: Ranks, *, config: Mapping[str, Any], rows: int, length: int, steps: int) -> dict[str, float]:
    """Hold each schedule against one process, and return how far each is apart. Raises AssertionError.

    `rows` of a step are of any length up to `length`; were microbatches of any size to count the same, it would show.
    """
    same = {"config": config, "adapter": "lora", "rank": 8, "rows": rows, "length": length, "steps": steps}
    result = {}
    for kind in KINDS:
        for count in MICROBATCHES:
            found = ranks.do(work="prove", kind=kind, microbatches=count, **same)
            result[f"{kind} {count}"] = gap = apart(found)
            assert gap < TOLERANCE, f"{kind}, {count} microbatches: {gap} apart from one process: {found}"
            assert found["moved"] > 5 * TOLERANCE, f"{kind}: some of the adapter learned nothing: {found}"
            wrong = abs(found["averaged"] - found["losses"][1][0])
            assert wrong > 10 * TOLERANCE, f"these rows would not show a wrong average: {found}"
    return result


def trained(case: Case) -> Wish:
    """Return what each process trains: the rows of a pass, or of a microbatch."""
    return replace(cluster_cost.wish("lora", 1), rows=ROWS // (case.microbatches or STAGES))


def estimated(case: Case, alone: float, link: Link) -> float:
    """Return the seconds of a step by the model. `alone`: those of one process, with as many rows in all.

    Four processes compute as quickly as the cores of this machine allow.
    """
    wish, quickest = trained(case), alone / min(STAGES, len(os.sched_getaffinity(0)))
    if case.sharing is not None:
        sent = sharing.traffic(wish, case.sharing, STAGES)
        found = steps.step(quickest, steps.forward(wish), 1, sent, STAGES, link, overlap=0)
        return alone if case.sharing == "none" else found.seconds
    wire = steps.wire(pipeline.border(wish), 1, 2, link)
    computing = pipeline.seconds([alone / STAGES / case.microbatches] * STAGES, case.microbatches, 0)
    return max(computing, quickest) + pipeline.seconds([0.0] * STAGES, case.microbatches, wire)


def predicted(case: Case) -> float:
    """Return the MB that a process sends in a step by the model; of a pipeline, one between two others."""
    if case.sharing is None:
        return pipeline.sent(trained(case), case.microbatches, 2) / 1e6
    return sharing.traffic(trained(case), case.sharing, STAGES).step(1) / 1e6


def measure(ranks: Ranks) -> None:
    """Print each way on each wire."""
    told = {**cluster_cost.told("lora", 1, steps=STEPS), "rows": ROWS, "work": "measure"}
    for gbit in GBITS:
        ranks.limit(gbit)
        probed = ranks.do(work="probe", mib=max(8, int(64 * gbit)), to=wires.address(1))
        link = Link(f"{gbit:g} Gbit/s", probed["gbit"], probed["round_trip"], "measured")
        print(f"\n{link.gbit * 1000:.1f} Mbit/s, {link.round_trip:.0f} us there and back; MB of each process:")
        print(f"{'':<18}{'step':>8}{'model':>8}{'sent':>24}{'model':>8}{'weights held':>24}{'above a bare one':>24}")
        alone = 0.0
        for case in CASES:
            found = ranks.do(**told, way=case.way, kind=case.kind, microbatches=case.microbatches)
            alone = alone or found["seconds"]
            model = estimated(case, alone, link)
            print(
                f"{case.title:<18}{found['seconds']:>6.2f} s{model:>6.2f} s{_all(found['sent'], 1):>24}"
                f"{predicted(case):>8.1f}{_all(found['held'], 1):>24}{_all(found['above'], 0):>24}",
                flush=True,
            )


def wait(ranks: Ranks) -> None:
    """Print how long a step takes whose stages wait instead of computing."""
    ranks.limit(WAIT_GBIT)
    probed = ranks.do(work="probe", mib=8, to=wires.address(1))
    link = Link("", probed["gbit"], probed["round_trip"])
    print(f"\nstages that wait {WAIT[0]:g} s forward and {WAIT[1]:g} s backward, {link.gbit * 1000:.1f} Mbit/s")
    for size in WAIT_BYTES:
        wire = steps.wire(size, 1, 2, link)
        for kind in KINDS:
            for count in MICROBATCHES:
                found = ranks.do(work="waited", kind=kind, microbatches=count, bytes=size, forward=WAIT[0],
                                 backward=WAIT[1], steps=STEPS)["seconds"]  # fmt: skip
                model = pipeline.seconds([sum(WAIT)] * STAGES, count, wire)
                print(
                    f"{kind:<6}{count:>3} microbatches, {wire:.3f} s at a border: {found:6.2f} s, model {model:6.2f} s"
                    f" ({model / found - 1:+.0%}), bubble {pipeline.bubble(STAGES, count):.0%}",
                    flush=True,
                )


def _all(values: Sequence[float], digits: int) -> str:
    return " ".join(f"{value:.{digits}f}" for value in values)


def main() -> None:
    """Prove, measure, and print what is estimated for real machines."""
    if os.geteuid():
        raise SystemExit("pipeline makes network namespaces, and needs root")
    python = os.environ.get("STRIX_TRAIN_PYTHON", sys.executable)
    with wires.wired(python, WORKER, STAGES) as ranks:
        proven = prove(ranks, config=cluster_cost.CONFIG, rows=16, length=cluster_cost.LENGTH, steps=5)
        for title, gap in proven.items():
            print(f"{title}: {gap:.1e} apart from one process, at most, after 5 steps")
        wait(ranks)
        measure(ranks)
    print(f"\nestimated for real machines:\n\n{pipeline_tables.text()}")
