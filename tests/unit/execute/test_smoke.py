"""No name moves before the smoke tests; those that changed are run again on what exists."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from strix_finetune import names, smoke
from strix_finetune.errors import SmokeFailed, TooLarge
from strix_finetune.events import Emit, LayerStarted, SmokeResult
from strix_finetune.execute import Blocked, Built, Failed, Outcome, Reused, execute
from strix_finetune.plan import Step, make_plan
from tests.fakes import layer_of, run_here
from tests.unit.execute.site import TIMEOUT, Site


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
