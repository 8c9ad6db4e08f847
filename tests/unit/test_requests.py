"""What a build step and a smoke test are given."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strix_finetune import graph, smoke
from strix_finetune.codeobject import CodeObjectError
from strix_finetune.engine.base import EngineInfo
from strix_finetune.events import Event, StepOutput
from strix_finetune.lockmodel import AptLock, AptPackage, Lock, PipLock, Release, WheelLock, WheelSetLock
from strix_finetune.netconf import NetSettings
from strix_finetune.plan import Build, make_plan
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


AMD = """\
[indexes.amd]
url = "https://stable.example/whl"
[layers.torch.wheels.rocm]
index = "amd"
requirements = ["torch==2.13.0+rocm10"]
"""
CONTENT = b"a wheel"


@pytest.fixture
def amd(chain: Images) -> Requests:
    """The channel debian with a set of wheels, one file of which is in the cache."""
    chain.channel("debian", AMD)
    template = "FROM {{ parent }}\nRUN --mount=type=bind,source={{ wheels('rocm') }},target=/media install\n"
    chain.layer("torch", 'parent = ["rccl", "base"]\n', template)
    url = "https://stable.example/whl/torch/torch-2.13.0%2Brocm10-cp314-cp314-linux_x86_64.whl"
    wheel = WheelLock("torch", "2.13.0+rocm10", url, hashlib.sha256(CONTENT).hexdigest())
    held = WheelSetLock("3.14", "amd", "2026-11-30T04:00:00Z", "", (wheel,))
    path = chain.folders.cache / "archives" / wheel.sha256
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    return replace(requests(chain), lock=replace(LOCK, wheels={"rocm": held}))


def test_a_set_of_wheels_lies_in_the_context_by_its_files_own_names(amd: Requests) -> None:
    layers = {layer.name: layer for layer in amd.workspace.render(with_every_package(amd.lock))}
    fetched = {file.path: file.source for file in amd._fetched(layers["torch"], print)}
    (path, held), *others = fetched.items()
    assert (path, others) == ("inputs/wheels/rocm/torch-2.13.0+rocm10-cp314-cp314-linux_x86_64.whl", [])
    assert isinstance(held, Path)
    assert held.read_bytes() == CONTENT
    (text,) = [file for file in layers["torch"].layer.files if file.path == "inputs/wheels/rocm/requirements.txt"]
    assert text.source == f"torch==2.13.0+rocm10 --hash=sha256:{hashlib.sha256(CONTENT).hexdigest()}\n".encode()
    # uv is lent to it as to a layer with a requirement set, and to no other
    lent = {
        name: {file.path for file in amd._network_files(layers[name])} & {".strix-net/bin/uv"}
        for name in ("torch", "rccl")
    }
    assert lent == {"torch": {".strix-net/bin/uv"}, "rccl": set()}


def with_every_package(lock: Lock) -> Lock:
    """A lock that renders the whole chain."""
    pip = PipLock("3.14", f"peft==1.0 --hash=sha256:{'b' * 64}\n", "")
    return replace(lock, pip={"app": pip})


def test_smoke_tests_can_read_what_wheels_were_locked(amd: Requests) -> None:
    facts = amd._facts()
    assert facts["locked/wheels-rocm.txt"] == (
        f"torch==2.13.0+rocm10 --hash=sha256:{hashlib.sha256(CONTENT).hexdigest()}\n".encode()
    )
    assert json.loads(facts["locked/wheels.json"]) == {
        "rocm": {
            "index": "https://stable.example/whl",
            "time": "2026-11-30T04:00:00Z",
            "python": "3.14",
            "files": ["torch-2.13.0+rocm10-cp314-cp314-linux_x86_64.whl"],
        }
    }


@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_a_rebuild_runs_every_step_and_keeps_dockers_cache_mounts(chain: Images, kind: str) -> None:
    text = 'FROM {{ parent }} AS one\nRUN make \\\n  RUN=1\nCOPY files /\n  run  ["a", "b"]\n# RUN no\n'
    chain.layer("torch", 'parent = ["rccl", "base"]\n', text)
    chain.write("images/torch/files/x", "x")
    engine = SimpleNamespace(info=EngineInfo(kind, "1", "1", "", rootless=False))  # type: ignore[arg-type]
    made = replace(requests(chain), engine=engine)
    plan = make_plan(chain.stack(), chain.render().values(), ("torch",), [])
    step = replace(plan.step("torch"), action=Build("rebuild, asked for", afresh=True))

    def context() -> tuple[list[str], bytes, bool]:
        request = made.build(step, lambda event: None)
        with tarfile.open(fileobj=io.BytesIO(b"".join(request.context()))) as archive:
            read = {name: archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]
        return read["Dockerfile"].decode().split("\n"), read.get(".strix-afresh", b""), request.use_cache

    lines, changing, use_cache = context()
    if kind == "podman":
        assert ("\n".join(lines), changing, use_cache) == (step.layer.layer.dockerfile, b"", False)
        return
    mount = "--mount=type=bind,source=.strix-afresh,target=/dev/.strix-afresh"
    assert lines[1:] == [
        f"RUN {mount} make \\",
        "  RUN=1",
        "COPY files /",
        f'  run {mount}  ["a", "b"]',
        "# RUN no",
        "",
    ]
    assert lines[0] == step.layer.layer.dockerfile.split("\n")[0]
    assert use_cache
    again, other, _ = context()
    assert again == lines
    assert len(other) == 16
    assert other != changing
