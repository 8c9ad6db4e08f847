"""Carrying out a plan on an engine that fails, waits and crashes as it is told."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from strix_finetune import crew, names, smoke
from strix_finetune.engine.base import BuildRequest
from strix_finetune.errors import BuildFailed, EngineError, Place, Problem, SmokeFailed, TooLarge, WorkError
from strix_finetune.events import Emit, Event, Finished, LayerDone, LayerStarted, Notice, SmokeResult, StepOutput
from strix_finetune.execute import Blocked, Built, Failed, Outcome, Reused, Work, execute
from strix_finetune.plan import Plan, Step, make_plan
from tests.conftest import Images
from tests.fakes import FakeEngine, layer_of, run_here

TIMEOUT = 20.0


class Site:
    """A stack, an engine and what happened."""

    def __init__(self, images: Images) -> None:
        self.images = images
        self.engine = FakeEngine()
        self.events: list[Event] = []
        self.wanted: tuple[str, ...] = ()
        self.on_request: Callable[[Step], None] = lambda step: None
        self.on_smoke: Callable[[Step, str, Emit], tuple[SmokeResult, ...]] = lambda step, image, emit: ()
        self.lock = threading.Lock()

    def emit(self, event: Event) -> None:
        with self.lock:
            self.events.append(event)

    def plan(self, *, rebuild: bool = False) -> Plan:
        stack = self.images.stack()
        wanted = self.wanted or (stack.final.name,)
        store = self.engine.images(names.KEY)
        return make_plan(stack, self.images.render().values(), wanted, store, rebuild=rebuild)

    def work(self) -> Work:
        def request(step: Step, emit: Emit) -> BuildRequest:
            self.on_request(step)
            return BuildRequest(lambda: iter(()), {names.LAYER: step.name, names.KEY: step.layer.key})

        return Work(
            request, lambda step, image, emit: self.on_smoke(step, image, emit), lambda step: f"{step.name}.log"
        )

    def run(self, *, jobs: int = 4) -> Mapping[str, Outcome]:
        return execute(self.plan(), self.engine, self.work(), self.emit, jobs=jobs)

    @property
    def built(self) -> list[str]:
        return [call[1] for call in self.engine.calls if call[0] == "build"]

    def done(self, layer: str) -> LayerDone:
        return next(event for event in self.events if isinstance(event, LayerDone) and event.layer == layer)

    @property
    def finished(self) -> Finished:
        return next(event for event in self.events if isinstance(event, Finished))


@pytest.fixture
def site(images: Images) -> Site:
    """base → left, right (independent) → top; top takes files of both."""
    images.layer("base")
    images.layer("left", 'parent = ["base"]\n')
    images.layer("right", 'parent = ["base"]\n')
    images.layer("top", 'parent = ["left"]\nbuilders = ["right"]\nfinal = true\n')
    return Site(images)


def fails(layer: str, error: Exception) -> Callable[[str, FakeEngine], None]:
    def on_build(name: str, engine: FakeEngine) -> None:
        if name == layer:
            raise error

    return on_build


def test_everything_is_built_tested_and_tagged(site: Site) -> None:
    seen: list[str] = []
    site.on_smoke = lambda step, image, emit: seen.append(step.name) or ()  # type: ignore[func-returns-value]
    outcomes = site.run()
    assert list(map(type, outcomes.values())) == [Built] * 4
    assert site.built[0] == "base"
    assert site.built[-1] == "top"
    assert sorted(seen) == ["base", "left", "right", "top"]
    plan = site.plan()
    assert not plan.builds
    assert set(site.engine.refs) == {tag for step in plan.steps for tag in step.tags}
    assert site.finished == Finished(4, 0, 0, 0, site.finished.seconds, "localhost/strix-finetune:gfx1151")
    done = site.done("top")
    assert (done.outcome, done.size, done.image) == (
        "built",
        1000,
        site.engine.refs["localhost/strix-finetune:gfx1151"],
    )
    started = [event for event in site.events if isinstance(event, LayerStarted)]
    assert started[0] == LayerStarted("base", "build, no image of it yet", "base.log")
    assert StepOutput("base", "making base") in site.events


def test_independent_layers_run_at_the_same_time(site: Site) -> None:
    barrier = threading.Barrier(2, timeout=TIMEOUT)

    def meet(layer: str, engine: FakeEngine) -> None:
        if layer in ("left", "right"):
            barrier.wait()

    site.engine.on_build = meet
    assert list(map(type, site.run(jobs=2).values())) == [Built] * 4


def test_so_do_a_smoke_test_and_a_build(site: Site) -> None:
    barrier = threading.Barrier(2, timeout=TIMEOUT)
    site.engine.on_build = lambda layer, engine: barrier.wait() and None if layer == "right" else None

    def meet(step: Step, image: str, emit: Emit) -> tuple[SmokeResult, ...]:
        if step.name == "left":
            barrier.wait()
        return ()

    site.on_smoke = meet
    assert list(map(type, site.run(jobs=2).values())) == [Built] * 4


@pytest.mark.parametrize("jobs", [1, 0, -3])
def test_one_job_is_the_order_of_the_stack(site: Site, jobs: int) -> None:
    running: list[str] = []
    most = 0

    def count(layer: str, engine: FakeEngine) -> None:
        nonlocal most
        running.append(layer)
        most = max(most, len(running))
        time.sleep(0.01)
        running.remove(layer)

    site.engine.on_build = count
    site.run(jobs=jobs)
    assert site.built == [node.name for node in site.images.stack().nodes]
    assert most == 1


def test_no_more_layers_at_once_than_allowed(images: Images) -> None:
    images.layer("base")
    for number in range(6):
        images.layer(f"side{number}", 'parent = ["base"]\n')
    images.layer("top", f'parent = ["base"]\nbuilders = {[f"side{number}" for number in range(6)]}\nfinal = true\n')
    site = Site(images)
    lock, running, most = threading.Lock(), 0, 0

    def count(layer: str, engine: FakeEngine) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.03)
        with lock:
            running -= 1

    site.engine.on_build = count
    site.run(jobs=3)
    assert most == 3


def test_a_failed_layer_stops_its_children_only(site: Site) -> None:
    site.engine.on_build = fails("left", BuildFailed("step 3 failed", log_tail=("line 1", "line 2")))
    outcomes = site.run()
    assert isinstance(outcomes["base"], Built)
    assert isinstance(outcomes["right"], Built)
    assert isinstance(outcomes["left"], Failed)
    assert outcomes["top"] == Blocked("left")
    assert site.finished == Finished(2, 0, 1, 1, site.finished.seconds, "")
    assert (site.done("left").message, site.done("left").log_tail) == ("step 3 failed", ("line 1", "line 2"))
    assert site.done("top").message == "not tried, 'left' failed"
    # the next run goes on from there
    site.engine.on_build = lambda layer, engine: None
    site.engine.calls.clear()
    outcomes = site.run()
    assert site.built == ["left", "top"]
    assert isinstance(outcomes["right"], Reused)


def test_a_step_says_its_own_sentence(chain: Images) -> None:
    """The last line that begins so is the message, with the patch that it names as the place."""
    site = Site(chain)
    said = ("patching file a", "strix-finetune: the patch 0002-x.patch does not apply; correct it", "1 hunk failed")
    site.engine.on_build = fails("rccl", BuildFailed("the step 'RUN …' failed with exit code 1", log_tail=said))
    site.run()
    place = chain.path / "rccl/patches/0002-x.patch"
    assert site.done("rccl").message == f"{place}: the patch 0002-x.patch does not apply; correct it"
    assert site.done("rccl").log_tail == said


def test_a_file_that_was_not_vendored_is_named(chain: Images) -> None:
    site = Site(chain)
    said = (
        "Err:3 file:/mnt/apt sid/main amd64 libperl5.42 amd64 5.42.3-1",
        "  File not found - /mnt/apt/pool/main/p/perl/libperl5.42_5.42.3-1_amd64.deb (2: No such file or directory)",
        "E: Unable to fetch some archives, maybe run apt update or try with --fix-missing?",
    )
    site.engine.on_build = fails("torch", BuildFailed("the step 'RUN …' failed with exit code 100", log_tail=said))
    site.run()
    told = "apt asks for libperl5.42_5.42.3-1_amd64.deb, which was not vendored: a layer below is of another state of"
    assert told in site.done("torch").message
    assert site.done("torch").message.endswith("build that one anew, with --rebuild and its name")


def test_a_failure_at_the_bottom_blocks_the_whole_chain(images: Images) -> None:
    names_ = ["a", "b", "c", "d"]
    for number, name in enumerate(names_):
        images.layer(name, f'parent = ["{names_[number - 1]}"]\n' if number else "")
    images.layer("e", 'parent = ["d"]\nfinal = true\n')
    site = Site(images)
    site.engine.on_build = fails("b", EngineError("no"))
    outcomes = site.run(jobs=1)
    # each names the layer that failed, not the one below it
    assert [outcomes[name] for name in ("c", "d", "e")] == [Blocked("b")] * 3


def test_a_sibling_that_is_running_finishes(site: Site) -> None:
    failed = threading.Event()

    def build(layer: str, engine: FakeEngine) -> None:
        if layer == "left":
            failed.set()
            raise EngineError("no")
        if layer == "right":
            assert failed.wait(TIMEOUT)
            time.sleep(0.05)

    site.engine.on_build = build
    assert isinstance(site.run()["right"], Built)


def test_a_failing_step_is_placed_in_the_template(site: Site) -> None:
    site.images.write("images/left/Dockerfile.j2", "<# a comment\n#>\nFROM {{ parent }}\nRUN no\n")
    site.engine.on_build = fails("left", BuildFailed(Problem("exit code 1", Place(Path("Dockerfile"), 2))))
    site.run()
    assert site.done("left").message == f"{site.images.path}/left/Dockerfile.j2:4: exit code 1"


def test_what_cannot_be_fetched_fails_its_layer_only(site: Site) -> None:
    def request(step: Step) -> None:
        if step.name == "left":
            raise WorkError("the download was cut off", cure="try again")
        if step.name == "right":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/cache/rootfs.tar")

    site.on_request = request
    outcomes = site.run()
    assert site.built == ["base"]
    assert isinstance(outcomes["left"], Failed)
    assert isinstance(outcomes["right"], Failed)
    assert site.done("left").message == "the download was cut off; try again"
    assert site.done("right").message == (
        "'right' could not be built: /cache/rootfs.tar: no space left on device; free some space and build again"
    )


# smoke tests


def real_smoke(site: Site, tmp_path: Path, scripts: dict[str, str]) -> None:
    site.engine.on_run = run_here(tmp_path / "root")
    (tmp_path / "root").mkdir()
    for layer, script in scripts.items():
        text = (site.images.path / layer / "layer.toml").read_text()
        site.images.write(f"images/{layer}/layer.toml", text + '[[smoke]]\nfile = "smoke/t.sh"\ntimeout = 1\n')
        site.images.write(f"images/{layer}/smoke/t.sh", f"#!/bin/sh\n{script}\n")
    stack = site.images.stack()
    site.on_smoke = lambda step, image, emit: smoke.run_tests(
        site.engine, image, step.name, smoke.tests_for(stack, step.name), {}, {}, emit
    )


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no; exit 9", "exit code 9: no"),
        ("kill -SEGV $$", "SIGSEGV (it crashed: a native library touched memory that is not its own)"),
        ("exec sleep 30", "not done after 1 s"),
        ("printf 'half a line'; kill -KILL $(ps -o ppid= -p $PPID)", "the test runner ended before it (SIGKILL"),
        ("printf '\\036end 0 0 0\\n'; exit 1", "exit code 1"),
    ],
)
def test_a_failed_smoke_test_moves_no_name_and_leaves_no_image(
    site: Site, tmp_path: Path, script: str, words: str
) -> None:
    real_smoke(site, tmp_path, {"base": "echo fine", "left": script})
    before = site.engine.add({names.KEY: "old", names.LAYER: "left"}, names.moving_ref("left", "gfx1151"))
    outcomes = site.run()
    assert isinstance(outcomes["base"], Built)
    assert isinstance(outcomes["left"], Failed)
    assert isinstance(outcomes["right"], Built)
    assert f"smoke test left/t.sh of 'left' failed: {words}" in site.done("left").message
    # the old image keeps its name, and nothing of the new one is left
    assert [ref for ref in site.engine.refs if layer_of(ref) == "left"] == [names.moving_ref("left", "gfx1151")]
    assert site.engine.refs[names.moving_ref("left", "gfx1151")] == before
    assert [image for image, labels in site.engine.store.items() if labels[names.LAYER] == "left"] == [before]
    assert site.finished.image == ""


def test_names_move_only_after_the_smoke_tests(site: Site) -> None:
    def check(step: Step, image: str, emit: Emit) -> tuple[SmokeResult, ...]:
        assert not any(held == image for held in site.engine.refs.values())
        return (SmokeResult(step.name, "t", "static", "passed", ""),)

    site.on_smoke = check
    outcome = site.run()["top"]
    assert isinstance(outcome, Built)
    assert outcome.smoke == (SmokeResult("top", "t", "static", "passed", ""),)


def test_a_layer_that_is_too_large_gets_no_name_and_is_not_tested(site: Site) -> None:
    tested: list[str] = []

    def smoke(step: Step, image: str, emit: Emit) -> tuple[SmokeResult, ...]:
        tested.append(step.name)
        return ()

    def weigh(step: Step, image: str) -> None:
        if step.name == "left":
            raise TooLarge("'left' adds 9 MB and may add 5 MB")

    site.on_smoke = smoke
    outcomes = execute(site.plan(), site.engine, replace(site.work(), weigh=weigh), site.emit)
    assert isinstance(outcomes["left"], Failed)
    assert outcomes["top"] == Blocked("left")
    assert site.done("left").message == "'left' adds 9 MB and may add 5 MB"
    assert sorted(tested) == ["base", "right"]
    assert not any("/left:" in ref for ref in site.engine.refs)
    assert len(site.engine.store) == 2, "the image is gone, too"


# tests of what exists


def retest(site: Site, *layers: str) -> Mapping[str, Outcome]:
    """Everything is there; the tests of `layers` have changed."""
    site.engine.calls.clear()
    site.events.clear()
    store = site.engine.images(names.KEY)
    tests = {name: {"t.sh": "new"} for name in layers}
    passed = {image.id: {"t.sh": "old"} for image in store}
    stack, keyed = site.images.stack(), site.images.render().values()
    plan = make_plan(stack, keyed, ("top",), store, tests=tests, passed=passed)
    return execute(plan, site.engine, site.work(), site.emit, jobs=4)


def test_what_exists_is_tested_again_and_not_built(site: Site) -> None:
    result = (SmokeResult("left", "t.sh", "static", "passed", ""),)
    seen = {}

    def smoke(step: Step, image: str, emit: Emit) -> tuple[SmokeResult, ...]:
        seen[step.name] = image
        return result

    site.run()
    site.on_smoke = smoke
    made = retest(site, "left", "base")
    assert set(seen) == {"left", "base"}
    assert site.built == []
    left = made["left"]
    assert isinstance(left, Reused)
    assert (left.image, left.smoke) == (seen["left"], result)
    assert made["top"] == Reused(site.engine.refs["localhost/strix-finetune:gfx1151"])
    started = [event for event in site.events if isinstance(event, LayerStarted)]
    assert {(event.layer, event.action, event.reason) for event in started} == {
        (name, "test", "up to date, smoke test t.sh changed") for name in ("left", "base")
    }
    assert site.done("left").outcome == "tested"
    assert (site.finished.built, site.finished.reused) == (0, 4)


def test_a_layer_that_fails_its_changed_tests_keeps_its_names(site: Site) -> None:
    site.run()
    before = dict(site.engine.refs)

    def smoke(step: Step, image: str, emit: Emit) -> tuple[SmokeResult, ...]:
        raise SmokeFailed("smoke test t.sh of 'base' failed", log_tail=("why",))

    site.on_smoke = smoke
    made = retest(site, "base")
    assert isinstance(made["base"], Failed)
    assert made["left"] == Reused(before["localhost/strix-finetune/left:gfx1151"])
    assert (site.done("base").outcome, site.done("base").log_tail) == ("failed", ("why",))
    assert site.engine.refs == before
    assert (site.finished.failed, site.finished.reused) == (1, 3)


def test_nothing_is_built_on_a_layer_that_fails_its_changed_tests(site: Site) -> None:
    def smoke(step: Step, image: str, emit: Emit) -> tuple[SmokeResult, ...]:
        if step.name == "left":
            raise SmokeFailed("bad")
        return ()

    site.run()
    site.on_smoke = smoke
    site.images.write("images/top/Dockerfile.j2", "FROM {{ parent }}\nRUN new\n")
    made = retest(site, "left")
    assert isinstance(made["left"], Failed)
    assert made["top"] == Blocked("left")
    assert site.built == []


def test_what_exists_is_tested_at_the_same_time_whatever_its_parents_do(site: Site) -> None:
    barrier = threading.Barrier(2, timeout=TIMEOUT)

    def smoke(step: Step, image: str, emit: Emit) -> tuple[SmokeResult, ...]:
        barrier.wait()
        return ()

    site.run()
    site.on_smoke = smoke
    assert all(isinstance(outcome, Reused) for outcome in retest(site, "base", "left").values())


# names


def test_when_one_name_cannot_move_none_does(site: Site) -> None:
    site.wanted = ("top",)
    site.run()
    before = dict(site.engine.refs)
    site.images.write("images/top/Dockerfile.j2", "FROM {{ parent }}\nRUN new\n")

    def refuse(image: str, ref: str) -> None:
        if ref == "localhost/strix-finetune:gfx1151" and image not in before.values():
            raise EngineError("the store is read-only")

    site.engine.on_tag = refuse
    outcomes = site.run()
    assert isinstance(outcomes["top"], Failed)
    assert site.engine.refs == before
    assert set(site.engine.store) == set(before.values())


def test_a_name_that_cannot_be_put_back_is_said(site: Site) -> None:
    site.run()
    held = set(site.engine.store)
    site.images.write("images/top/Dockerfile.j2", "FROM {{ parent }}\nRUN new\n")

    def refuse(image: str, ref: str) -> None:
        if image in held or ref == "localhost/strix-finetune:gfx1151":
            raise EngineError("the store is read-only")

    site.engine.on_tag = refuse
    site.run()
    message = [event.message for event in site.events if isinstance(event, LayerDone) and event.outcome == "failed"]
    assert "the name localhost/strix-finetune/top:gfx1151 could not be put back: the store is read-only" in message[0]


def test_lost_names_are_set_again(site: Site) -> None:
    site.run()
    good = dict(site.engine.refs)
    del site.engine.refs["localhost/strix-finetune:gfx1151"]
    site.engine.calls.clear()
    site.events.clear()
    assert list(map(type, site.run().values())) == [Reused] * 4
    assert site.engine.refs == good
    assert site.built == []
    assert site.finished.image == "localhost/strix-finetune:gfx1151"


def test_lost_names_that_cannot_be_set(site: Site) -> None:
    site.run()
    del site.engine.refs["localhost/strix-finetune:gfx1151"]

    def refuse(image: str, ref: str) -> None:
        raise EngineError("the store is read-only")

    site.engine.on_tag = refuse
    site.events.clear()
    outcomes = site.run()
    assert isinstance(outcomes["top"], Failed)
    assert (site.finished.failed, site.finished.reused, site.finished.image) == (1, 3, "")


def test_an_image_that_cannot_be_removed_is_said(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def smoke_fails(step: Step, image: str, emit: Emit) -> tuple[SmokeResult, ...]:
        raise WorkError("bad")

    def refuse(image: str) -> None:
        raise EngineError("busy")

    site.on_smoke = smoke_fails
    monkeypatch.setattr(site.engine, "remove", refuse)
    outcomes = site.run()
    assert isinstance(outcomes["base"], Failed)
    said = next(event.message for event in site.events if isinstance(event, Notice))
    assert said.endswith("is left over: busy")


def test_a_size_that_the_engine_does_not_say_is_no_failure(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    original = site.engine.image

    def image(ref: str) -> object:
        if ref.startswith("sha256:"):
            raise EngineError("no")
        return original(ref)

    monkeypatch.setattr(site.engine, "image", image)
    assert isinstance(site.run()["top"], Built)
    assert site.done("top").size == 0


# interruption


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
