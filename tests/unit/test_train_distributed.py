"""Several processes, as far as no torch is needed: seats, the lifeline, what must agree, how rows are divided."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from typing import Any

import pytest

from strix_train import plan as plans
from strix_train.device import Device
from strix_train.distributed import agreement, batch, links, seats, strategy, together
from strix_train.distributed.lifeline import Fault, Head, Tail
from strix_train.errors import InputError, TrainError
from strix_train.estimate.links import Link

MEETING = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400"}


def test_a_seat_is_what_the_launcher_says() -> None:
    assert seats.here({}) == seats.Seat()
    found = seats.here(
        {"RANK": "1", "WORLD_SIZE": "2", "STRIX_DIST_TIMEOUT": "90", "STRIX_PORTS": "29400-29499"} | MEETING
    )
    assert (found.rank, found.world, found.main, found.agent) == (1, 2, False, False)
    assert (found.timeout, found.join, found.ports[0], found.ports[-1]) == (90, 90, 29400, 29499)
    assert seats.here({"WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"} | MEETING).agent


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2 and WORLD_SIZE is 2; start with torchrun"),
        ({"RANK": "x"}, "RANK: 'x' is no whole number"),
        ({"WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT do not say where they meet"),
        ({"WORLD_SIZE": "2", "STRIX_DIST_TIMEOUT": "0"} | MEETING, "STRIX_DIST_TIMEOUT: it is 0; write seconds"),
        ({"WORLD_SIZE": "2", "STRIX_PORTS": "9-1"} | MEETING, "STRIX_PORTS: '9-1' is no range of ports"),
    ],
)
def test_a_seat_that_cannot_be_is_refused(variables: dict[str, str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence.replace("(", r"\(")):
        seats.here(variables)


class Circle:
    """A head with some tails, and what each of them was told."""

    def __init__(self, tails: int) -> None:
        self.told: dict[int, list[Fault]] = {rank: [] for rank in range(tails + 1)}
        self.head = Head(self.told[0].append)
        self.tails = {
            rank: Tail(rank, ["192.0.2.1" if rank > 8 else "127.0.0.1"], self.head.port, self.head.token, hear, 5)
            for rank, hear in ((rank, self.told[rank].append) for rank in range(1, tails + 1))
        }

    def wait(self, ranks: tuple[int, ...]) -> None:
        limit = time.monotonic() + 10
        while time.monotonic() < limit and not all(self.told[rank] for rank in ranks):
            time.sleep(0.005)
        time.sleep(0.02)


def test_a_fault_reaches_all_others_once() -> None:
    circle = Circle(3)
    circle.tails[2].fail("the disk is full", 1)
    circle.wait((0, 1, 3))
    assert {rank: len(each) for rank, each in circle.told.items()} == {0: 1, 1: 1, 2: 0, 3: 1}
    assert circle.told[3] == circle.told[0] == [Fault(2, "the disk is full", 1)]
    circle.head.fail("too late", 2)
    circle.wait((0,))
    assert len(circle.told[1]) == 1


def test_a_process_that_dies_is_told_and_one_that_leaves_is_not() -> None:
    circle = Circle(3)
    circle.tails[1].close()
    time.sleep(0.05)
    assert not any(circle.told.values())
    circle.tails[3]._line.connection.shutdown(2)
    circle.wait((0, 2))
    assert circle.told[0] == circle.told[2] == [Fault(3, "", 1, lost=True)]
    assert not circle.told[1]


def test_the_end_of_process_0_reaches_all() -> None:
    circle = Circle(2)
    circle.head._closing = True  # who is dead does not tell of the lines that end, either
    for line in list(circle.head._lines.values()):
        line.connection.shutdown(2)
    circle.wait((1, 2))
    assert circle.told[1] == circle.told[2] == [Fault(0, "", 1, lost=True)]
    calm = Circle(2)
    calm.head.close()
    time.sleep(0.1)
    assert not any(calm.told.values())


def test_a_stranger_on_the_port_is_no_process() -> None:
    circle = Circle(1)
    with pytest.raises(OSError, match=r"nobody answers at 127.0.0.1, port \d+"):
        Tail(2, ["127.0.0.1"], circle.head.port, "guessed", circle.told[1].append, 0.3)
    assert not any(circle.told.values())


def test_one_that_was_welcomed_too_late_tries_again() -> None:
    """It closes its end and makes another: that is no death, and its end behind it is."""
    circle = Circle(2)
    with socket.create_connection(("127.0.0.1", circle.head.port)) as late:
        late.sendall(json.dumps({"rank": 3, "token": circle.head.token}).encode() + b"\n")
        assert json.loads(late.makefile().readline()) == {"welcome": circle.head.token}
    time.sleep(0.1)
    assert not any(circle.told.values())
    again = Tail(3, ["127.0.0.1"], circle.head.port, circle.head.token, lambda fault: None, 5)
    again._line.connection.shutdown(2)
    circle.wait((0, 1, 2))
    assert circle.told[0] == circle.told[1] == circle.told[2] == [Fault(3, "", 1, lost=True)]


class Store:
    """torch's store, as far as it is used here."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}

    def set(self, name: str, value: str) -> None:
        self.held[name] = value

    def get(self, name: str) -> str:
        return self.held[name]

    def check(self, names: list[str]) -> bool:
        return all(name in self.held for name in names)


def ranks(rank: int, **more: Any) -> tuple[together.Ranks, Store]:
    found = together.Ranks(seats.Seat(rank, 2, join=0.05, **more))
    found._store = store = Store()
    return found, store


def test_process_0_is_waited_for_and_the_others_for_a_while() -> None:
    """It writes or reads a checkpoint alone before it comes, which may take longer than all may be late."""
    mine, store = ranks(1)
    timer = threading.Timer(0.3, store.set, ("random-1/0", '{"state": "a"}'))
    timer.start()
    assert mine.exchange("random", {"state": "b"}) == [{"state": "a"}, {"state": "b"}]
    timer.join()
    first, _ = ranks(0)
    with pytest.raises(TrainError, match=r"process 1 of 2 has not come within 0 s"):
        first.exchange("random", {"state": "a"})


@pytest.mark.parametrize(("agent", "comes"), [(False, True), (False, False), (True, False)])
def test_the_store_stays_until_all_have_left(monkeypatch: pytest.MonkeyPatch, agent: bool, comes: bool) -> None:
    """Not for ever, and not where torchrun holds it."""
    monkeypatch.setattr(together, "_PARTING", 30 if comes or agent else 0.3)
    mine, store = ranks(0, agent=agent)
    seen: list[tuple[float, bool]] = []
    began = time.monotonic()
    monkeypatch.setattr(
        together.places, "leave", lambda: seen.append((time.monotonic() - began, store.check(["left/1"])))
    )
    other, _ = ranks(1)
    other._store = store
    timer = threading.Timer(0.2, other._part)
    if comes:
        timer.start()
    mine.close()
    [(seconds, left)] = seen
    assert left == comes
    assert seconds >= 0.3 if not comes and not agent else seconds < 20
    os.close(other._stderr)


def facts(**more: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"host": "a", "train": "1", "recipe": {"schedule.steps": 3}, "packages": {"peft": "1"}}
    return usual | more


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"train": "2"}, "process 1 has other rows than process 0; give every node the same files and the same recipe"),
        (
            {"recipe": {"schedule.steps": 4}, "host": "b"},
            "process 1 (on b) has another recipe than process 0: schedule.steps is 4 there and 3 at process 0; ",
        ),
        ({"packages": {}}, "process 1 has other versions than process 0: peft is not there there and 1 at process 0"),
        ({"weights": "ab"}, "process 1 has model weights of digest ab and process 0 has not there"),
    ],
)
def test_the_first_difference_is_one_sentence(other: dict[str, Any], sentence: str) -> None:
    assert agreement.difference([facts(), facts(host="a")]) is None
    assert str(agreement.difference([facts(), facts(**other)])).startswith(sentence)


def test_paths_may_differ() -> None:
    value = {"data": {"train": [{"path": "/a/rows.jsonl", "weight": 2}]}, "output": "runs", "model": "/m", "seed": 1}
    kept = {key for key, _ in agreement._flat(value) if not agreement._is_own(key)}
    assert kept == {"data.train.0.weight", "seed"}


@pytest.mark.parametrize(
    ("rows", "world", "most", "found"),
    [
        (8, 2, 4, (4, 1)),
        (8, 1, 4, (4, 2)),
        (8, 4, 4, (2, 1)),
        (12, 2, 4, (3, 2)),
        (14, 2, 4, (1, 7)),
        (8, 3, 4, None),
    ],
)
def test_rows_of_a_step_stay(rows: int, world: int, most: int, found: tuple[int, int] | None) -> None:
    assert batch.divide(rows, world, most) == found
    if found:
        assert found[0] * found[1] * world == rows
        assert found[0] <= most


def test_buckets_follow_the_link() -> None:
    """A slow link with few microseconds needs small ones, a quick one large ones; never a few large ones alone."""
    assert links.bucket(10**9, None) == links.USUAL
    slow, quick, far = Link("", 0.94, 74), Link("", 100, 20), Link("", 9.5, 450)
    assert links.bucket(10**9, slow) == 1
    assert 8 <= links.bucket(10**9, quick) <= 16
    assert 16 <= links.bucket(10**9, far) <= 32
    assert links.bucket(16 * 2**20, far) == 4
    assert links.bucket(1000, far) == 1


def decided(gib: int, *settings: str, world: int = 2) -> strategy.Shared:
    """How processes share the 8B recipe, each with so much memory."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("STRIX_LINK_GBIT", "STRIX_LINK_US", "LOCAL_WORLD_SIZE"):
            patch.delenv(name, raising=False)
        return _decided(gib, *settings, world=world)


def _decided(gib: int, *settings: str, world: int) -> strategy.Shared:
    made = plans.make("llama3.1-8b-lora", ["backend=hf", *settings], with_backend=False)
    device = Device("cuda:0", "cuda", "NVIDIA H200", "CUDA 13.0", gib * 2**30, True, True)
    return strategy.decide(made, device, world, "bf16", "hf")


def test_auto_says_what_would_make_it_fit_and_tries_it_all_the_same() -> None:
    whole = decided(139)
    assert (whole.kind, whole.fits, whole.advice) == ("ddp", True, "")
    shared = decided(139, "adapter=full", "schedule.learning_rate=1e-5")
    assert (shared.kind, shared.fits) == ("fsdp", True)
    small = decided(8)
    assert (small.kind, small.fits) == ("ddp", False)
    assert small.reason.startswith("auto: each of 2 devices needs ")
    assert "adapter" in small.advice
    assert decided(139, "strategy=fsdp").reason == "asked for"


def test_one_process_shares_nothing_and_says_so_where_it_was_to() -> None:
    for wish in ("fsdp", "ddp"):
        assert (
            strategy.told(decided(139, f"strategy={wish}", world=1)) == "none (one process, which shares with nobody)"
        )
    for wish in ("auto", "none"):
        assert decided(139, f"strategy={wish}", world=1) == strategy.Shared()


def test_nodes_that_would_share_in_other_ways_are_told() -> None:
    """The link that a node is told of decides how much DDP sends at once: with other buckets, sums would be wrong."""
    ours, theirs = strategy.Shared("ddp", "why", bucket=8), strategy.Shared("ddp", "another", bucket=16)
    said = [facts(strategy=strategy.facts_of(each)) for each in (ours, theirs)]
    found = str(agreement.difference(said))
    assert found.startswith("process 1 has another strategy than process 0: bucket is 16 there and 8 at process 0; ")
    assert "STRIX_LINK_GBIT" in found
    said = [facts(strategy=strategy.facts_of(each)) for each in (ours, strategy.Shared("ddp", "other", bucket=8))]
    assert agreement.difference(said) is None
    for other in (
        strategy.Shared("fsdp"),
        strategy.Shared("fsdp", how=strategy.How("step")),
        strategy.Shared("fsdp", direct=False),
        strategy.Shared("deepspeed", stage=2),
    ):
        assert agreement.difference([facts(strategy=strategy.facts_of(each)) for each in (ours, other)])
