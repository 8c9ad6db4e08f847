"""Layers at the same time, and what a failure of one means for the others."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from strix_finetune.errors import BuildFailed, EngineError, Place, Problem, WorkError
from strix_finetune.events import Emit, Finished, LayerStarted, SmokeResult, StepOutput
from strix_finetune.execute import Blocked, Built, Failed, Reused
from strix_finetune.plan import Step
from tests.conftest import Images
from tests.fakes import FakeEngine
from tests.unit.execute.site import TIMEOUT, Site, fails


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
