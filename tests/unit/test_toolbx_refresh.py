"""A toolbox made anew: what is renewed first, the swap, and the old container, which survives every failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import click
import pytest

from strix_finetune import cli, names
from strix_finetune.cli import registry
from strix_finetune.errors import EngineError, EngineUnavailable, InputError, WorkError
from strix_finetune.toolbx import make, renew
from tests.fakes import FakeEngine
from tests.unit.test_toolbx import BOX, CONTAINER, Stage, change, staged

TARGET = "cpu"
REF = names.final_ref(TARGET)
OLD = CONTAINER | {"Image": "c" * 64}


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """One container, of another image than the new one."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    stage = staged()
    change(stage, names={"box"}, old=OLD)
    return stage


def refresh(stage: Stage, *, force: bool = False) -> None:
    make.refresh(stage, BOX, stage.said.append, force=force)


def test_refresh_swaps_and_keeps_the_old_one(stage: Stage) -> None:
    change(stage, names={"box", "box-before", "box-new"})
    refresh(stage)
    assert stage.names == {"box", "box-before"}
    assert stage.said[0] == "tested: strix-train, version 1, torch 2.13 on the CPU"
    calls = "\n".join(stage.calls)
    assert calls.index("podman rm --force --time 0 box-new") < calls.index("toolbox create")
    assert calls.index("toolbox run --container box-new /opt/venv/bin/python") < calls.index(
        "podman rename box box-before"
    )


def test_refresh_of_the_newest_does_nothing_unless_forced(stage: Stage) -> None:
    change(stage, old=CONTAINER)
    refresh(stage)
    assert "newest" in stage.said[0]
    assert stage.names == {"box"}
    refresh(stage, force=True)
    assert stage.names == {"box", "box-before"}


@pytest.mark.parametrize(
    "failing",
    [
        "create",
        "run --container box-new train",
        "run --container box-new /opt/venv/bin/python",
        "rename box ",
        "rename box-new",
    ],
)
def test_the_old_one_survives_every_failure(stage: Stage, failing: str) -> None:
    change(stage, fail=failing)
    with pytest.raises(WorkError, match="it does not work today"):
        refresh(stage)
    assert stage.names == {"box"}


def test_it_survives_a_new_one_that_is_not_right(stage: Stage) -> None:
    change(stage, new=CONTAINER | {"HostConfig": {"Privileged": False}})
    with pytest.raises(WorkError, match="box-new is not privileged"):
        refresh(stage)
    assert stage.names == {"box"}


def test_it_survives_one_of_before_that_cannot_be_removed(stage: Stage) -> None:
    change(stage, names={"box", "box-before"}, fail="rm --force --time 0 box-before")
    with pytest.raises(WorkError, match="it does not work today"):
        refresh(stage)
    assert stage.names == {"box", "box-before"}


def test_one_that_was_killed_between_its_two_renames(stage: Stage) -> None:
    change(stage, names={"box-before", "box-new"})
    refresh(stage)
    assert stage.names == {"box", "box-before"}
    assert stage.said[0] == "box is back, which a refresh that was cut off had left as box-before"


def test_refresh_touches_only_containers_of_toolbx(stage: Stage) -> None:
    change(stage, names=set())
    with pytest.raises(InputError, match="there is no container box"):
        refresh(stage)
    change(stage, names={"box"}, old=CONTAINER | {"Config": {"Labels": {}}})
    with pytest.raises(InputError, match="box is no Toolbx container"):
        refresh(stage)


def test_what_a_rootless_user_pays_is_told(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "cost", lambda programs, image, say: say(f"costs {image.size >> 30} GB"))
    refresh(stage)
    assert stage.said[0] == "costs 20 GB"


# what is renewed, and how


@pytest.fixture
def podman(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """Podman alone, with an image that was not built here; Docker does not run."""
    engine = FakeEngine()
    engine.add({names.KEY: "1" * 64, names.TARGET: TARGET}, REF)

    def connect(kind: str, env: object) -> FakeEngine:
        if kind == "docker":
            raise EngineUnavailable("there is no Docker")
        return engine

    @contextmanager
    def found(env: object) -> Iterator[Stage]:
        yield stage

    for place in ("toolbx.renew", "toolbx.store", "engine.select"):
        monkeypatch.setattr(f"strix_finetune.{place}.connect", connect)
    monkeypatch.setattr("strix_finetune.toolbx.programs.found", found)
    return engine


def the_command(*words: str) -> int:
    return cli.main(["toolbox", "refresh", "--target", TARGET, *words, "box"])


def makes(stage: Stage, image: str) -> None:
    """The container that will be made is of this image."""
    change(stage, new=CONTAINER | {"Image": image.removeprefix("sha256:")})


@pytest.fixture
def pulled(podman: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """`pull`, which comes to `image`, or to `error`; `with`: how it was called."""
    pull: dict[str, object] = {"error": None, "image": "", "with": ""}
    assert {"address", "target", "engine"} <= {parameter.name for parameter in registry.pull.params}

    @click.command()
    @click.option("--from", "address")
    @click.option("--target")
    @click.option("--engine")
    def command(address: str, target: str, engine: str, **rest: object) -> int:
        pull["with"] = f"{address} {target} {engine}"
        if isinstance(pull["error"], Exception):
            raise pull["error"]
        podman.refs[REF] = str(pull["image"])
        return 0

    monkeypatch.delenv(renew.REGISTRY, raising=False)
    monkeypatch.setattr("strix_finetune.cli.registry.pull", command)
    return pull


def test_a_newer_image_is_pulled_first(stage: Stage, podman: FakeEngine, pulled: dict[str, object]) -> None:
    pulled["image"] = podman.add({names.KEY: "2" * 64, names.TARGET: TARGET})
    makes(stage, str(pulled["image"]))
    assert the_command("--from", "registry.example/strix") == 0
    assert pulled["with"] == f"registry.example/strix {TARGET} podman"
    assert stage.names == {"box", "box-before"}


def test_where_nothing_was_built_the_registry_of_the_environment_is_meant(
    stage: Stage, podman: FakeEngine, pulled: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled["image"] = podman.add({names.KEY: "2" * 64, names.TARGET: TARGET})
    makes(stage, str(pulled["image"]))
    monkeypatch.setenv(renew.REGISTRY, "registry.example/mine")
    assert the_command() == 0
    assert pulled["with"] == f"registry.example/mine {TARGET} podman"


def test_what_cannot_be_pulled_leaves_everything(
    stage: Stage, podman: FakeEngine, pulled: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    before = podman.refs[REF]
    pulled["error"] = EngineError("the registry does not answer")
    assert the_command("--from", "registry.example/strix") == 1
    assert "the registry does not answer" in capsys.readouterr().err
    assert podman.refs[REF] == before
    assert stage.names == {"box"}
    assert not [call for call in stage.calls if "create" in call or "rename" in call]


@pytest.fixture
def built(podman: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A stack that was built with Podman; `code` and `image` are what the next build comes to."""
    podman.add({names.KEY: "3" * 64}, names.moving_ref("base", TARGET))
    build: dict[str, object] = {"code": 0, "image": "", "with": ""}

    @click.command()
    @click.option("--target")
    @click.option("--engine")
    @click.option("--locked", is_flag=True)
    def command(target: str, engine: str, locked: bool, **rest: object) -> object:
        build["with"] = f"{engine} {target} {locked}"
        if build["image"]:
            podman.refs[REF] = str(build["image"])
        return build["code"]

    monkeypatch.setattr("strix_finetune.cli.build.build", command)
    return build


def test_what_was_built_here_is_built_anew(stage: Stage, podman: FakeEngine, built: dict[str, object]) -> None:
    built["image"] = podman.add({names.KEY: "4" * 64})
    makes(stage, str(built["image"]))
    assert the_command() == 0
    assert built["with"] == f"podman {TARGET} False"
    assert stage.names == {"box", "box-before"}


def test_a_build_that_fails_leaves_the_container(
    stage: Stage, built: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    built["code"] = 1
    assert the_command() == 1
    assert "the image was not renewed, so the container stays as it is" in capsys.readouterr().err
    assert stage.names == {"box"}
    assert not [call for call in stage.calls if "create" in call]


def test_nothing_is_pulled_or_built_as_it_is(stage: Stage, podman: FakeEngine, built: dict[str, object]) -> None:
    makes(stage, podman.refs[REF])
    assert the_command("--as-is") == 0
    assert built["with"] == ""
    assert stage.names == {"box", "box-before"}


def test_an_image_that_was_not_built_here_is_not_built_from_nothing(
    stage: Stage, podman: FakeEngine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(renew.REGISTRY, raising=False)
    assert the_command() == 2
    assert "--from HOST/NAME pulls a newer one; --as-is takes the one that is here" in capsys.readouterr().err
    assert the_command("--as-is", "--from", "a.example/b") == 2
    assert stage.names == {"box"}


def test_a_container_that_is_not_there_is_asked_for_before_hours_of_building(
    stage: Stage, built: dict[str, object]
) -> None:
    change(stage, names=set())
    assert the_command() == 2
    assert built["with"] == ""


def test_docker_builds_what_it_has_built_before(monkeypatch: pytest.MonkeyPatch) -> None:
    docker, podman = FakeEngine(), FakeEngine()
    docker.add({names.KEY: "1" * 64}, names.moving_ref("base", TARGET))
    monkeypatch.setattr(renew, "connect", lambda kind, env: docker if kind == "docker" else podman)
    assert renew.source("", "base", TARGET, {}) == renew.Source(engine="docker")
    assert docker.closed.is_set()
    assert podman.closed.is_set()
    podman.add({names.KEY: "1" * 64}, names.moving_ref("base", TARGET))
    assert renew.source("", "base", TARGET, {}).engine == "podman"
