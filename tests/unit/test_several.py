"""Several targets in one go: what they share is built once, a failure stops its own target alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from strix_finetune import names
from strix_finetune.cli import main
from strix_finetune.engine.base import BuildEvent, BuildRequest
from strix_finetune.errors import BuildFailed
from tests.conftest import Images
from tests.fakes import FakeEngine

LOCK = """\
format = 1
channel = "debian"
target = "{target}"

[apt]
suite = "sid"

[apt.releases.sid]
date = "2026-01-01T00:00:00Z"
sha256 = "{zeros}"
"""


class Recorder(FakeEngine):
    """Also keeps the Dockerfile of each request, by target and layer."""

    texts: dict[tuple[str, str], str]

    def build(self, request: BuildRequest, on_event: Any) -> str:
        content = b"".join(request.context())
        self.texts[request.labels[names.TARGET], request.labels[names.LAYER]] = content[512:].split(b"\0")[0].decode()
        return super().build(request, on_event)


def nothing(event: BuildEvent) -> None: ...


@pytest.fixture
def engine(images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Three layers and two targets: `base` is the same on both."""
    made = Recorder()
    made.texts = {}
    images.channel()
    images.targets()
    images.layer("base")
    images.layer("mid", 'parent = ["base"]\n', "FROM {{ parent }}\nRUN make {{ target.id }}\n")
    images.layer("top", 'parent = ["mid"]\nfinal = true\n')
    for target in ("gfx1151", "cpu"):
        images.write(f"images/locks/debian-{target}.toml", LOCK.format(target=target, zeros="0" * 64))
    for name in ("CACHE", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setattr("strix_finetune.engine.select.connect", lambda kind, env: made)
    return made


def run(images: Images, *words: str, target: str = "gfx1151,cpu") -> int:
    return main(["build", "--target", target, "--channel", "debian", "--images", str(images.path), *words])


def events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_what_two_targets_share_is_built_once(
    engine: Recorder, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(images, "--json") == 0
    assert [engine.texts[target, "mid"].split()[-1] for target in ("gfx1151", "cpu")] == ["gfx1151", "cpu"]
    assert "RUN make base" in engine.texts["gfx1151", "base"]
    # the other target's image is of the same layers, with labels of its own
    twin = engine.texts["cpu", "base"].split()
    assert twin[0] == "FROM"
    assert twin[1].startswith(f"{names.PREFIX}/base:gfx1151-")
    for target in ("gfx1151", "cpu"):
        image = engine.image(names.moving_ref("base", target))
        assert image is not None
        assert image.labels[names.TARGET] == target
        assert engine.image(names.final_ref(target)) is not None
    told = events(capsys)
    assert {event.get("target") for event in told if event["event"] == "layer-done"} == {"gfx1151", "cpu"}
    assert [event["message"] for event in told if event["event"] == "notice"] == [
        "built once for several targets: base"
    ]
    (end,) = [event for event in told if event["event"] == "targets-done"]
    assert [(row["target"], row["outcome"], row["built"], row["image"]) for row in end["targets"]] == [
        ("gfx1151", "done", 3, f"{names.PREFIX}:gfx1151"),
        ("cpu", "done", 3, f"{names.PREFIX}:cpu"),
    ]


def test_a_second_time_there_is_nothing_to_do(
    engine: Recorder, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    run(images)
    engine.texts.clear()
    capsys.readouterr()
    assert run(images) == 0
    assert engine.texts == {}
    lines = capsys.readouterr().err.splitlines()
    assert " ".join(lines[-3].split()) == "TARGET CHANNEL BUILT PULLED UP TO DATE FAILED NOT TRIED SECONDS RESULT"
    assert lines[-1].split()[:7] == ["cpu", "debian", "0", "0", "3", "0", "0"]


def test_a_failure_stops_its_own_target_alone(
    engine: Recorder, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def fail(layer: str, made: FakeEngine) -> None:
        calls.append(layer)
        if layer == "mid" and "gfx1151" in threading.current_thread().name + str(list(engine.texts)[-1]):
            raise BuildFailed("the compiler is not in the mood")

    engine.on_build = fail
    assert run(images, "--jobs", "1") == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2].split()[0] == "gfx1151"
    assert lines[-2].endswith("mid failed")
    assert lines[-1].endswith(names.final_ref("cpu"))
    assert engine.image(names.final_ref("gfx1151")) is None
    assert engine.image(names.final_ref("cpu")) is not None


def test_where_the_shared_layer_fails_no_target_is_tried(
    engine: Recorder, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(layer: str, made: FakeEngine) -> None:
        raise BuildFailed("no")

    engine.on_build = fail
    assert run(images) == 1
    assert list(engine.texts) == [("gfx1151", "base")]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[5:7] for line in lines[-2:]] == [["1", "2"], ["0", "3"]]
    assert all(line.endswith("base failed") for line in lines[-2:])


def test_a_rebuild_builds_what_is_shared_once(engine: Recorder, images: Images) -> None:
    run(images)
    for names_of in (["base"], ["base", "mid"]):
        engine.texts.clear()
        engine.calls.clear()
        engine.closed.clear()
        assert run(images, *names_of, "--rebuild") == 0
        built = sorted(call[1] for call in engine.calls if call[0] == "build")
        assert built == sorted(["base", *(name for name in names_of * 2 if name != "base")])
        assert engine.texts["gfx1151", "base"].startswith("FROM scratch")


def test_the_plan_says_what_is_shared(engine: Recorder, images: Images, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(images, "--dry-run") == 0
    assert engine.texts == {}
    lines = capsys.readouterr().err.splitlines()
    assert "gfx1151/base: build, no image of it yet" in lines
    assert "cpu/base: build, no image of it yet" in lines
    assert lines[-1] == "built once for several targets: base"


def test_wrong_targets_are_refused_before_anything_is_built(
    engine: Recorder, images: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(images, target="gfx1151,,cpu") == 2
    assert "--target cannot be 'gfx1151,,cpu'" in capsys.readouterr().err
    assert run(images, target="gfx1151,gfx0") == 2
    assert engine.texts == {}


def test_an_interrupt_ends_all_of_them(engine: Recorder, images: Images) -> None:
    def interrupt(layer: str, made: FakeEngine) -> None:
        if layer == "mid":
            import _thread

            _thread.interrupt_main()
            assert made.closed.wait(10)

    engine.on_build = interrupt
    assert run(images) == 130
    assert engine.image(names.final_ref("cpu")) is None
    assert engine.image(names.final_ref("gfx1151")) is None
