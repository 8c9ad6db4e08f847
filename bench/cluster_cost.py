"""The model of a step's time beside real steps: two processes in network namespaces of their own, joined by a wire.

Needs root, iproute2 (bench.wires), and torch: STRIX_TRAIN_PYTHON names a Python that has it. What is printed is for
docs/clusters.md; a busy machine computes more slowly, and so do both columns.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench import wires
from strix_train.estimate import machines, shapes, sharing, steps
from strix_train.estimate.links import Link
from strix_train.estimate.memory import Wish
from strix_train.estimate.sharing import Sharing

WORKER = "bench.cluster_worker"
# A small Llama in 32 bits: 9 million weights.
CONFIG = {
    "model_type": "llama",
    "hidden_size": 288,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "head_dim": 48,
    "vocab_size": 2048,
    "tie_word_embeddings": False,
}
ROWS, LENGTH, RANK, STEPS = 4, 64, 16, 2
# Slow on purpose: what the scheduler of a busy machine adds to a step is little beside the wire then.
GBITS = (0.1, 0.05, 0.02)
# MiB: as many buckets for this model as 25 MiB are for one of ordinary size
BUCKET = 2.0
CASES: tuple[tuple[Sharing, str, int], ...] = (
    ("ddp", "full", 1),
    ("ddp", "full", 4),
    ("ddp", "lora", 1),
    ("fsdp", "full", 1),
    ("fsdp", "lora", 1),
)


@dataclass(frozen=True)
class Row:
    """A measured case. `sent`: bytes of a step that rank 0 sent, by its sockets' own counters."""

    sharing: Sharing
    adapter: str
    accumulation: int
    link: Link
    compute: float
    seconds: float
    sent: float

    @property
    def wish(self) -> Wish:
        """What each rank trained."""
        return wish(self.adapter, self.accumulation)

    @property
    def model(self) -> steps.Step:
        """The model's step with the compute time that was measured."""
        sent = sharing.traffic(self.wish, self.sharing, 2)
        how = {"overlap": steps.overlap(machines.cpu()), "gather": steps.GLOO_GATHER}
        return steps.step(self.compute, steps.forward(self.wish), self.accumulation, sent, 2, self.link, **how)


def wish(adapter: str, accumulation: int) -> Wish:
    """Return what a rank trains."""
    return Wish(
        shapes.of_config(CONFIG),
        adapter=adapter,
        rank=RANK if adapter == "lora" else 0,
        rows=ROWS,
        length=LENGTH,
        accumulation=accumulation,
        bits=32,
        recompute=False,
        gpu=False,
    )


def told(adapter: str, accumulation: int, steps: int = STEPS) -> dict[str, Any]:
    """Return what the ranks are told to measure, but for how they share."""
    size = {"config": CONFIG, "rows": ROWS, "length": LENGTH, "rank": RANK, "steps": steps, "bucket": BUCKET}
    return {**size, "work": "measure", "adapter": adapter, "accumulation": accumulation}


def measured(python: str) -> Iterator[Row]:
    """Yield each case on each wire; what computing alone takes is measured beside it, on both ranks at once."""
    with wires.wired(python, WORKER) as ranks:
        for gbit in GBITS:
            ranks.limit(gbit)
            found = ranks.do(work="probe", mib=max(8, int(64 * gbit)), to=wires.address(1))
            link = Link(f"{gbit:g} Gbit/s", found["gbit"], found["round_trip"], "measured")
            for how, adapter, accumulation in CASES:
                took = ranks.do(**told(adapter, accumulation), sharing=how)
                yield Row(how, adapter, accumulation, link, took["alone"], took["shared"], took["sent"])


def main() -> None:
    """Print measured and estimated steps side by side."""
    if os.geteuid():
        raise SystemExit("cluster-cost makes network namespaces, and needs root")
    python = os.environ.get("STRIX_TRAIN_PYTHON", sys.executable)
    print(f"{'wire':>22}  {'case':<14}{'alone':>9}{'measured':>10}{'model':>9}{'':>8}{'sent':>12}{'model':>11}")
    for row in measured(python):
        model = row.model
        wire = f"{row.link.gbit:.2f} Gbit/s {row.link.round_trip:.0f} us"
        bytes_ = sharing.traffic(row.wish, row.sharing, 2).step(row.accumulation)
        print(
            f"{wire:>22}  {row.sharing:<5}{row.adapter:<5}x{row.accumulation:<3}{row.compute:>7.2f} s"
            f"{row.seconds:>8.2f} s{model.seconds:>7.2f} s{model.seconds / row.seconds - 1:>+8.0%}"
            f"{row.sent / 1e6:>9.1f} MB{bytes_ / 1e6:>8.1f} MB",
            flush=True,
        )
