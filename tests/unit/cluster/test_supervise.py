"""The first that fails ends all, Ctrl-C ends all in order, and nobody waits for ever."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence

import pytest

from strix_finetune.cluster import supervise
from strix_finetune.cluster.supervise import Ended, Events, Supervisor


class Fake:
    """A training that ends `on` signals: name → exit code; None means that it does not listen."""

    def __init__(self, index: int, events: Events, on: dict[str, int | None]) -> None:
        self.index, self.events, self.on = index, events, on
        self.signals: list[str] = []

    def signal(self, name: str) -> None:
        self.signals.append(name)
        code = self.on.get(name)
        if code is not None:
            self.end(code)

    def remove(self) -> None: ...

    def end(self, code: int | None, why: str = "") -> None:
        self.events.put(Ended(self.index, code, False, why, time.monotonic()))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "GRACE", (0.1, 0.1, 0.1))
    monkeypatch.setattr(supervise, "AFTER_HEAD", 0.1)


def two(on: dict[str, int | None], other: dict[str, int | None] | None = None) -> tuple[list[Fake], Events]:
    events = Events()
    return [Fake(0, events, on), Fake(1, events, on if other is None else other)], events


def codes(ends: Sequence[Ended]) -> list[int | None]:
    return [end.code for end in ends]


def test_all_end_by_themselves() -> None:
    fakes, events = two({})
    fakes[1].end(0)
    fakes[0].end(0)
    assert codes(Supervisor(fakes, events, print).wait()) == [0, 0]
    assert fakes[0].signals == fakes[1].signals == []


def test_one_that_fails_ends_the_others_by_word_and_then_by_force() -> None:
    fakes, events = two({"SIGTERM": 1})
    fakes[1].end(1)
    ends = Supervisor(fakes, events, print).wait()
    assert codes(ends) == [1, 1]
    assert fakes[0].signals == ["SIGTERM"]
    fakes, events = two({"SIGKILL": 137})
    fakes[1].end(None, "gone")
    ends = Supervisor(fakes, events, print).wait()
    assert fakes[0].signals == ["SIGTERM", "SIGKILL"]
    assert ends[0].stopped
    assert not ends[1].stopped


def test_one_that_cannot_be_ended_is_given_up() -> None:
    fakes, events = two({})
    fakes[1].end(1)
    ends = Supervisor(fakes, events, print).wait()
    assert codes(ends) == [None, 1]
    assert ends[0].stopped
    assert "does not end" in ends[0].why


def test_one_that_outlives_the_head_is_ended() -> None:
    fakes, events = two({"SIGTERM": 1})
    fakes[0].end(0)
    assert codes(Supervisor(fakes, events, print).wait()) == [0, 1]
    assert fakes[1].signals == ["SIGTERM"]


def test_ctrl_c_goes_to_all_and_they_take_their_time() -> None:
    fakes, events = two({})
    watch = Supervisor(fakes, events, print)
    with supervise.asked(events):
        os.kill(os.getpid(), signal.SIGINT)
        # a checkpoint takes longer than a failed run is waited for
        threading.Timer(0.6, lambda: [fake.end(130) for fake in fakes]).start()
        assert codes(watch.wait()) == [130, 130]
    assert watch.interrupted
    assert fakes[0].signals == fakes[1].signals == ["SIGINT"]


def test_one_that_has_not_heard_a_signal_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was just born: the others have stopped, and it would wait for them in its first step."""
    fakes, events = two({"SIGTERM": 130}, {"SIGINT": 130})
    watch = Supervisor(fakes, events, print)
    monkeypatch.setattr(supervise, "AFTER_ASKED", 0.3)
    events.put(supervise.Asked("SIGINT", time.monotonic()))
    assert codes(watch.wait()) == [130, 130]
    assert fakes[0].signals == ["SIGINT", "SIGTERM"]
    assert fakes[1].signals == ["SIGINT"]


def test_the_head_may_save_for_longer_than_the_others() -> None:
    fakes, events = two({}, {"SIGINT": 130})
    watch = Supervisor(fakes, events, print)
    events.put(supervise.Asked("SIGINT", time.monotonic()))
    threading.Timer(0.6, fakes[0].end, [130]).start()
    assert codes(watch.wait()) == [130, 130]
    assert fakes[0].signals == ["SIGINT"]


def test_a_node_that_is_lost_meanwhile_ends_that_patience() -> None:
    events = Events()
    fakes = [Fake(index, events, {"SIGTERM": 143} if index == 2 else {}) for index in range(3)]
    watch = Supervisor(fakes, events, print)
    events.put(supervise.Asked("SIGINT", time.monotonic()))
    fakes[1].end(130)
    fakes[0].end(None, "gone")
    assert codes(watch.wait()) == [None, 130, 143]
    assert fakes[2].signals == ["SIGINT", "SIGTERM"]


def test_a_second_ctrl_c_ends_at_once_but_not_an_echo_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes, events = two({"SIGKILL": 137})
    watch = Supervisor(fakes, events, print)
    now = time.monotonic()
    for at in (now, now + 0.2, now + 2):
        events.put(supervise.Asked("SIGINT", at))
    ends = watch.wait()
    assert fakes[0].signals == ["SIGINT", "SIGKILL"]
    assert all(end.stopped for end in ends)


def test_a_lost_node_is_not_waited_for() -> None:
    began = time.monotonic()
    supervise.each([Fake(0, Events(), {})], lambda run: time.sleep(30), 0.1)
    assert time.monotonic() - began < 5
