"""Several processes, as far as no torch is needed: seats, the lifeline, what must agree, how rows are divided."""

from __future__ import annotations

import time
from typing import Any

import pytest

from strix_train import plan as plans
from strix_train.device import Device
from strix_train.distributed import agreement, batch, links, seats, strategy
from strix_train.distributed.lifeline import Fault, Head, Tail
from strix_train.errors import InputError
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


def decided(gib: int, *settings: str) -> strategy.Shared:
    """How two processes share the 8B recipe, each with so much memory."""
    made = plans.make("llama3.1-8b-lora", ["backend=hf", *settings], with_backend=False)
    device = Device("cuda:0", "cuda", "NVIDIA H200", "CUDA 13.0", gib * 2**30, True, True)
    return strategy.decide(made, device, 2, "bf16", "hf")


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
