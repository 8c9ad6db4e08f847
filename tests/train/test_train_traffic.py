"""The bytes that `train estimate --nodes` counts are those that two ranks send, by their sockets' own counters."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from bench import cluster_cost, wires
from bench.wires import Ranks

from strix_train.estimate import sharing
from strix_train.estimate.sharing import Sharing


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with socket.socket() as found, ExitStack() as stack:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
        found.close()
        here = ("127.0.0.1", "127.0.0.1")
        yield Ranks(wires.started(stack, sys.executable, cluster_cost.WORKER, here, port, ("lo", "lo")))


@pytest.mark.parametrize(
    ("how", "adapter", "accumulation"),
    [("ddp", "full", 2), ("ddp", "lora", 1), ("fsdp", "full", 2), ("fsdp", "lora", 1)],
)
def test_two_ranks_send_what_is_estimated(ranks: Ranks, how: Sharing, adapter: str, accumulation: int) -> None:
    found = ranks.do(**cluster_cost.told(adapter, accumulation, steps=1), sharing=how)
    wish = cluster_cost.wish(adapter, accumulation)
    counted = sharing.traffic(wish, how, 2).step(accumulation)
    # barriers and the heads of messages are sent as well
    assert counted <= found["sent"] < 1.02 * counted + 64_000
