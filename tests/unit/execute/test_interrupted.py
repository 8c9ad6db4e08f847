"""What ends a build from outside: an interrupt, a bug, a view that nobody reads."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time

import pytest

from strix_finetune import crew
from strix_finetune.events import Emit, Event, Finished, LayerDone, SmokeResult, StepOutput
from strix_finetune.execute import execute
from strix_finetune.plan import Step
from tests.fakes import FakeEngine, layer_of
from tests.unit.execute.site import TIMEOUT, Site, fails


def test_an_interrupt_stops_what_runs(site: Site) -> None:
    begun = threading.Event()
    ended: list[str] = []

    def build(layer: str, engine: FakeEngine) -> None:
        if layer == "base":
            return
        begun.set()
        engine.closed.wait(TIMEOUT)
        ended.append(layer)

    site.engine.on_build = build

    def interrupt() -> None:
        begun.wait(TIMEOUT)
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        site.run()
    assert site.engine.closed.is_set()
    # the threads have ended before the call does, nothing was tagged, and nothing more is said
    assert sorted(ended) == ["left", "right"]
    assert {layer_of(ref) for ref in site.engine.refs} == {"base"}
    assert not [event for event in site.events if isinstance(event, LayerDone) and event.layer != "base"]
    assert not [event for event in site.events if isinstance(event, Finished)]
    assert "top" not in site.built


def test_an_interrupt_does_not_wait_for_a_silent_build(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "GRACE", 0.1)
    begun, release = threading.Event(), threading.Event()

    def build(layer: str, engine: FakeEngine) -> None:
        begun.set()
        release.wait(TIMEOUT)

    site.engine.on_build = build

    def interrupt() -> None:
        begun.wait(TIMEOUT)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        site.run()
    assert time.monotonic() - began < TIMEOUT / 2
    (builder,) = [thread for thread in threading.enumerate() if thread.name == "build base"]
    assert builder.daemon, "the process must be able to end before its build does"
    release.set()
    builder.join(TIMEOUT)
    # it came to its end after the interrupt: it must not have been tagged
    assert site.engine.refs == {}


def test_an_interrupt_between_test_and_names_moves_no_name(site: Site) -> None:
    def interrupted(step: Step, image: str, emit: Emit) -> tuple[SmokeResult, ...]:
        if step.name == "base":
            os.kill(os.getpid(), signal.SIGINT)
            site.engine.closed.wait(TIMEOUT)
        return ()

    site.on_smoke = interrupted
    with pytest.raises(KeyboardInterrupt):
        site.run()
    assert site.engine.refs == {}


def test_a_build_ends_with_its_next_word_after_an_interrupt(site: Site) -> None:
    begun = threading.Event()
    ended = threading.Event()

    def smoke_(step: Step, image: str, emit: Emit) -> tuple[SmokeResult, ...]:
        begun.set()
        try:
            for _ in range(2000):
                emit(StepOutput(step.name, "tick"))
                time.sleep(0.01)
        finally:
            ended.set()
        return ()

    site.on_smoke = smoke_

    def interrupt() -> None:
        begun.wait(TIMEOUT)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        site.run(jobs=1)
    assert ended.is_set()


def test_a_bug_is_no_failure_of_a_layer(site: Site) -> None:
    site.engine.on_build = fails("left", ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        site.run()
    assert site.engine.closed.is_set()


def test_a_view_that_nobody_reads_any_more_ends_the_build(site: Site) -> None:
    def emit(event: Event) -> None:
        if isinstance(event, StepOutput):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        execute(site.plan(), site.engine, site.work(), emit)
    assert site.engine.refs == {}
