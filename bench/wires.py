"""Ranks that are told what to do, each in a network namespace of its own: two on one cable, more on a switch.

Cable and switch are veth pairs whose rates tc's token buckets limit, in both directions. Nothing outside of these
namespaces is touched, and all are gone with their processes. Needs root and iproute2; ranks without namespaces of
their own (`started`) need neither.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PORT = 29611


class End(NamedTuple):
    """An end of a veth pair. `space`: the process that keeps its namespace. What leaves here is limited here."""

    space: int
    device: str


class Ranks:
    """Ranks at work, and the ends of the wires between them."""

    def __init__(self, workers: Sequence[subprocess.Popen[str]], ends: Sequence[End] = ()) -> None:
        self.workers, self.ends = workers, ends

    def do(self, **told: Any) -> dict[str, Any]:
        """Let all do one thing and return what rank 0 says."""
        for worker in self.workers:
            assert worker.stdin
            worker.stdin.write(json.dumps(told) + "\n")
            worker.stdin.flush()
        head = self.workers[0]
        assert head.stdout
        line = head.stdout.readline()
        if not line:
            raise SystemExit(f"a rank ended ({head.poll()}): see what it printed above")
        found: dict[str, Any] = json.loads(line)
        return found

    def limit(self, gbit: float) -> None:
        """Let each direction of each wire carry `gbit` at most."""
        rate = f"{gbit * 1000:g}mbit"
        # a bucket of 2 ms, at least one of the largest packets that the kernel cuts late
        burst = str(max(128 * 1024, int(gbit * 1e9 / 8 * 0.002)))
        for end in self.ends:
            _inside(end.space, "tc", "qdisc", "replace", "dev", end.device, "root", "tbf", "rate", rate,
                    "burst", burst, "latency", "50ms")  # fmt: skip


def address(rank: int) -> str:
    """Return where a rank is reached by the others."""
    return f"10.99.0.{rank + 1}"


@contextmanager
def wired(python: str, module: str, count: int = 2) -> Iterator[Ranks]:
    """Start ranks that run `module`, each in a network namespace of its own."""
    with ExitStack() as stack:
        spaces = [_space(stack) for _ in range(count)]
        ends = _cable(spaces) if count == 2 else _switch(_space(stack), spaces)
        for rank, space in enumerate(spaces):
            _inside(space, "ip", "address", "add", f"{address(rank)}/24", "dev", f"v{rank}")
            _inside(space, "ip", "link", "set", f"v{rank}", "up")
            _inside(space, "ip", "link", "set", "lo", "up")
        into = (("nsenter", "--net", "--target", str(space)) for space in spaces)
        interfaces = [f"v{rank}" for rank in range(count)]
        addresses = [address(rank) for rank in range(count)]
        yield Ranks(started(stack, python, module, addresses, PORT, interfaces, into), ends)


def _cable(spaces: Sequence[int]) -> list[End]:
    one, other = spaces
    _inside(one, "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", str(other))
    return [End(one, "v0"), End(other, "v1")]


def _switch(hub: int, spaces: Sequence[int]) -> list[End]:
    """Join all in a bridge, which has a namespace of its own; its ports are limited as well."""
    _inside(hub, "ip", "link", "add", "switch", "type", "bridge")
    _inside(hub, "ip", "link", "set", "switch", "up")
    ends = []
    for rank, space in enumerate(spaces):
        port, own = f"p{rank}", f"v{rank}"
        _inside(hub, "ip", "link", "add", port, "type", "veth", "peer", "name", own, "netns", str(space))
        _inside(hub, "ip", "link", "set", port, "master", "switch", "up")
        ends += [End(hub, port), End(space, own)]
    return ends


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
    module: str,
    addresses: Sequence[str],
    port: int,
    interfaces: Sequence[str],
    into: Iterable[tuple[str, ...]] | None = None,
) -> list[subprocess.Popen[str]]:
    """Start a rank for each address, each by the words of `into` before its own; they end with the stack."""
    found = []
    before = into or [()] * len(addresses)
    for rank, (own, interface, words) in enumerate(zip(addresses, interfaces, before, strict=True)):
        place = {"RANK": str(rank), "WORLD_SIZE": str(len(addresses)), "HEAD": f"{addresses[0]}:{port}"}
        # Debian's PyTorch has no libuv
        more = {"OMP_NUM_THREADS": "1", "USE_LIBUV": "0", "PYTHONPATH": str(ROOT)}
        environment = {**os.environ, **place, "ADDRESS": own, "GLOO_SOCKET_IFNAME": interface, **more}
        worker = subprocess.Popen(
            [*words, python, "-m", module],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(_end, worker)
        found.append(worker)
    return found


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
