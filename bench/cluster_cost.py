"""The model of a step's time beside real steps: two processes in network namespaces of their own, joined by a wire.

The wire is a veth pair whose rate tc's token buckets limit, in both directions. Nothing outside of the two namespaces
is touched, and both are gone with their processes. Needs root, iproute2, and torch (STRIX_TRAIN_PYTHON names a Python
that has it). What is printed is for docs/clusters.md; a busy machine computes more slowly, and so do both columns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_train.estimate import machines, shapes, sharing, steps
from strix_train.estimate.links import Link
from strix_train.estimate.memory import Wish
from strix_train.estimate.sharing import Sharing

ROOT = Path(__file__).resolve().parents[1]
ADDRESSES, PORT = ("10.99.0.1", "10.99.0.2"), 29611
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


class Pair:
    """Two ranks at work, and the wire between them."""

    def __init__(
        self, workers: tuple[subprocess.Popen[str], subprocess.Popen[str]], spaces: tuple[int, ...] = ()
    ) -> None:
        self.workers, self.spaces = workers, spaces

    def do(self, **told: Any) -> dict[str, float]:
        """Let both do one thing and return what rank 0 says."""
        for worker in self.workers:
            assert worker.stdin
            worker.stdin.write(json.dumps(told) + "\n")
            worker.stdin.flush()
        head = self.workers[0]
        assert head.stdout
        line = head.stdout.readline()
        if not line:
            raise SystemExit(f"a rank ended ({head.poll()}): see what it printed above")
        found: dict[str, float] = json.loads(line)
        return found

    def limit(self, gbit: float) -> None:
        """Let each direction carry `gbit` at most."""
        for at, space in enumerate(self.spaces):
            rate = f"{gbit * 1000:g}mbit"
            # a bucket of 2 ms, at least one of the largest packets that the kernel cuts late
            burst = str(max(128 * 1024, int(gbit * 1e9 / 8 * 0.002)))
            _inside(space, "tc", "qdisc", "replace", "dev", f"v{at}", "root", "tbf", "rate", rate, "burst", burst,
                    "latency", "50ms")  # fmt: skip


@contextmanager
def pair(python: str) -> Iterator[Pair]:
    """Start two ranks, each in a network namespace of its own with one end of a wire."""
    with ExitStack() as stack:
        spaces = (_space(stack), _space(stack))
        _inside(spaces[0], "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", str(spaces[1]))
        for at, space in enumerate(spaces):
            _inside(space, "ip", "address", "add", f"{ADDRESSES[at]}/30", "dev", f"v{at}")
            _inside(space, "ip", "link", "set", f"v{at}", "up")
            _inside(space, "ip", "link", "set", "lo", "up")
        into = (("nsenter", "--net", "--target", str(space)) for space in spaces)
        yield Pair(started(stack, python, ADDRESSES, PORT, ("v0", "v1"), into), spaces)


def _space(stack: ExitStack) -> int:
    """Return the process that keeps a new network namespace."""
    mine = Path("/proc/self/ns/net").readlink()
    # it ends with its stdin, so also where this process is killed
    keeper = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
    stack.callback(keeper.wait)
    stack.callback(keeper.kill)
    while Path(f"/proc/{keeper.pid}/ns/net").readlink() == mine:
        if keeper.poll() is not None:
            raise SystemExit("no network namespace could be made: this measurement needs root")
        time.sleep(0.01)
    return keeper.pid


def started(
    stack: ExitStack,
    python: str,
    addresses: tuple[str, str],
    port: int,
    interfaces: tuple[str, str],
    into: Iterable[tuple[str, ...]] = ((), ()),
) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """Start two ranks, each by the words of `into` before its own; they end with the stack."""
    head = f"{addresses[0]}:{port}"
    found = []
    for rank, (address, interface, words) in enumerate(zip(addresses, interfaces, into, strict=True)):
        own = {"RANK": str(rank), "HEAD": head, "ADDRESS": address, "GLOO_SOCKET_IFNAME": interface}
        # Debian's PyTorch has no libuv
        more = {"OMP_NUM_THREADS": "1", "USE_LIBUV": "0", "PYTHONPATH": str(ROOT)}
        environment = {**os.environ, **own, **more}
        command = [*words, python, "-m", "bench.cluster_worker"]
        worker = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        stack.callback(_end, worker)
        found.append(worker)
    return found[0], found[1]


def _end(worker: subprocess.Popen[str]) -> None:
    """Let a rank end by itself, which it does with its stdin, and not wait long for it."""
    assert worker.stdin
    assert worker.stdout
    with suppress(OSError):
        worker.stdin.close()
    try:
        worker.wait(timeout=5)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
    worker.stdout.close()


def _inside(space: int, *words: str) -> None:
    subprocess.run(["nsenter", "--net", "--target", str(space), *words], check=True)


def told(adapter: str, accumulation: int, steps: int = STEPS) -> dict[str, Any]:
    """Return what the ranks are told to measure, but for how they share."""
    size = {"config": CONFIG, "rows": ROWS, "length": LENGTH, "rank": RANK, "steps": steps, "bucket": BUCKET}
    return {**size, "work": "measure", "adapter": adapter, "accumulation": accumulation}


def measured(python: str) -> Iterator[Row]:
    """Yield each case on each wire; what computing alone takes is measured beside it, on both ranks at once."""
    with pair(python) as ranks:
        for gbit in GBITS:
            ranks.limit(gbit)
            found = ranks.do(work="probe", mib=max(8, int(64 * gbit)), to=ADDRESSES[1])
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
