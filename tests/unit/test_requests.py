"""What a build step and a smoke test are given."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strix_finetune import graph, smoke
from strix_finetune.codeobject import CodeObjectError
from strix_finetune.engine.base import EngineInfo
from strix_finetune.events import Event, StepOutput
from strix_finetune.lockmodel import AptLock, AptPackage, Lock, Release
from strix_finetune.netconf import NetSettings
from strix_finetune.plan import make_plan
from strix_finetune.requests import Requests
from strix_finetune.workspace import Workspace
from tests.conftest import Images

LOCK = Lock("debian", "gfx1151", AptLock("sid", {"sid": Release("", "")}, {"bash": AptPackage("5.3-1", 1, "a" * 64)}))


def requests(images: Images, settings: NetSettings | None = None) -> Requests:
    project = images.load()
    workspace = Workspace(images.folders, project, graph.stack(project, "gfx1151", "debian"))
    return Requests(workspace, LOCK, settings or NetSettings(), None)  # type: ignore[arg-type]


def test_a_smoke_test_can_read_what_was_declared_and_locked(chain: Images) -> None:
    facts = requests(chain)._facts()
    assert facts["locked/apt.txt"] == b"bash=5.3-1\n"
    assert facts["patches/rccl/0001-a.patch"] == b"--- a\n+++ b\n"
    layers = json.loads(facts["layers.json"])
    assert layers["base"]["vars"] == {"jobs": 2}
    assert layers["rccl"]["patches"] == ["0001-a.patch", "0002-x.patch"]
    targets = json.loads(facts["targets.json"])
    assert targets["gfx1151"] == {"kind": "gpu", "wave_size": 32, "missing": {}, "excluded": ""}


def test_the_reader_of_device_code_works_where_it_is_laid(
    chain: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in requests(chain)._facts().items():
        path = tmp_path / "inside" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    monkeypatch.syspath_prepend(tmp_path / "inside/lib")
    try:
        reader = importlib.import_module("codeobject")
        library = Path(__file__).parent / "data/codeobject/plain.so"
        assert reader.inspect(library).targets
        with pytest.raises(reader.CodeObjectError) as caught:
            reader.inspect(tmp_path / "missing.so")
        # its own module, not this project's
        assert not isinstance(caught.value, CodeObjectError)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "codeobject"]:
            del sys.modules[name]


def test_a_builder_is_not_tested_as_an_image_that_people_use(chain: Images) -> None:
    test = '[[smoke]]\nfile = "smoke/{}.sh"\nscope = "{}"\n'
    base = test.format("clean", "descendants") + test.format("own", "layer")
    chain.layer("base", base, "FROM scratch\nADD {{ rootfs }} /\n")
    for path in ("base/smoke/clean.sh", "base/smoke/own.sh", "devel/smoke/compiles.sh"):
        chain.write(f"images/{path}", "#!/bin/sh\n", executable=True)
    chain.layer(
        "devel",
        'parent = ["base"]\nrole = "builder"\nserves = "gpu"\n' + test.format("compiles", "layer"),
        "FROM {{ parent }}\n",
    )
    stack = graph.stack(chain.load(), "gfx1151", "debian")
    names = {layer: [test.name for test in smoke.tests_for(stack, layer)] for layer in ("base", "devel", "torch")}
    assert names == {
        "base": ["base/clean.sh", "base/own.sh"],
        "devel": ["devel/compiles.sh"],
        "torch": ["base/clean.sh"],
    }


def test_a_step_sees_every_suite_although_the_image_names_one(chain: Images) -> None:
    toml = (chain.path / "channels/debian.toml").read_text()
    apt = '[apt]\nsuite = "sid"\nextra_suites = ["experimental"]\npins = ["Package: a\\nPin: release a=experimental"]\n'
    chain.write("images/channels/debian.toml", toml.replace('apt = { suite = "sid" }\n', apt))
    chain.layer("base", "", "FROM scratch\nADD {{ rootfs }} /\n")
    made = requests(chain, NetSettings(debian_mirror="http://mirror.example/debian"))
    layer = chain.render()["torch"]
    files = {file.path: file.source for file in made._network_files(layer)}
    sources = files[".strix-net/sources.list"]
    assert isinstance(sources, bytes)
    assert [line.split()[3] for line in sources.decode().splitlines()] == ["sid", "experimental"]
    assert files[".strix-net/preferences"] == b"Package: a\nPin: release a=experimental\n"


@pytest.mark.parametrize(
    ("kind", "mount", "sound"),
    [
        ("docker", "--mount=type=bind,source=files,target=/media", True),
        ("podman", "--mount=type=bind,source=files,target=/media", False),
        ("podman", "--mount=type=bind,target=/media", False),
        ("podman", "--mount=type=bind,source=.strix-net,target=/mnt --mount=type=cache,target=/c", True),
        ("podman", "", True),
    ],
)
def test_podmans_cache_is_not_trusted_with_mounted_files(chain: Images, kind: str, mount: str, sound: bool) -> None:
    chain.layer("torch", 'parent = ["rccl", "base"]\n', "FROM {{ parent }}\nRUN " + f"{mount} make\n")
    engine = SimpleNamespace(info=EngineInfo(kind, "1", "1", "", rootless=False))  # type: ignore[arg-type]
    made = replace(requests(chain), engine=engine)
    plan = make_plan(chain.stack(), chain.render().values(), ("torch",), [])
    assert made.build(plan.step("torch"), lambda event: None).use_cache is sound


def test_what_the_bootstrap_says_is_the_layers_output(chain: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    def rootfs(*arguments: Any) -> Path:
        arguments[-1]("I: installing essential packages...")
        return chain.write("rootfs.tar", "tar")

    monkeypatch.setattr("strix_finetune.bootstrap.rootfs", rootfs)
    engine = SimpleNamespace(info=EngineInfo("docker", "1", "1", "", rootless=False))
    plan = make_plan(chain.stack(), chain.render().values(), ("base",), [])
    said: list[Event] = []
    replace(requests(chain), engine=engine).build(plan.step("base"), said.append)  # type: ignore[arg-type]
    assert said == [StepOutput("base", "I: installing essential packages...")]
