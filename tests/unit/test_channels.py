"""The channels that are shipped: what they ask for, and that the lock of AMD's packages is the recorded one."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from strix_finetune import graph, lockfile, names, wanted
from strix_finetune import lock as locks
from strix_finetune.errors import DefinitionError
from strix_finetune.lint import BANNED_ENV
from strix_finetune.load import load
from strix_finetune.lockmodel import AptLock, AptPackage, Lock, PipLock, WheelLock, WheelSetLock
from strix_finetune.model import Keyed, Project
from strix_finetune.paths import Folders
from strix_finetune.pep508 import requirement_fault
from strix_finetune.workspace import Workspace
from strix_train.devicerules import Facts, rules

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "images"
AMD = ("amd", "amd-7.14", "amd-7.2", "amd-edge")
INDEX = "https://stable.repo.amd.com/rocm/whl-next"
# As public projects recorded them in 2026-09 from the files that AMD serves: project, version, file, sha256.
RECORDED = """
amd-torch-device-gfx1151 2.13.0+rocm10.0.0 amd_torch_device_gfx1151-2.13.0%2Brocm10.0.0-cp313-cp313-linux_x86_64.whl 33dfb69b1d6d89127aec416d2891b205ed31d7ffb0a106aa45a54da7afd0c01d
amd-torch-device-gfx115x 2.13.0+rocm10.0.0 amd_torch_device_gfx115x-2.13.0%2Brocm10.0.0-cp313-cp313-linux_x86_64.whl 44b27db9d540e589f2b17a78ca227a832f70c95ff7f476927507fbda92b524e5
amd-torchvision-device-gfx1151 0.28.0+rocm10.0.0 amd_torchvision_device_gfx1151-0.28.0%2Brocm10.0.0-cp313-cp313-linux_x86_64.whl 847738fbb85db7e3cd6e711565a314bd145e71bb15f3b9271004b9821d18f234
rocm 10.0.0 rocm-10.0.0.tar.gz 65b5982249612a310135f5e061b9f28909e8ad718a1ddb3f1abba92298b7216b
rocm-bootstrap 0.1.0 rocm_bootstrap-0.1.0-py3-none-any.whl 33e3d4dad086b1f0e06bc049a618ca874d4fb72f758fff00676e23d2a644b652
rocm-sdk-core 10.0.0 rocm_sdk_core-10.0.0-py3-none-linux_x86_64.whl 3bf4a72d11aa2a4ee1e90572c73630f937d38c1b7af4dda45b483b54655138a7
rocm-sdk-device-gfx1151 10.0.0 rocm_sdk_device_gfx1151-10.0.0-py3-none-linux_x86_64.whl ec705df531e523777a5cd47b2dfadb2272935927c46c122effb11fcdcedb73d0
rocm-sdk-libraries 10.0.0 rocm_sdk_libraries-10.0.0-py3-none-linux_x86_64.whl bbe83a550cb8ceeb306abf6d57df6617857a1b19384549526db2ec81a4374e57
torch 2.13.0+rocm10.0.0 torch-2.13.0%2Brocm10.0.0-cp313-cp313-linux_x86_64.whl 28cbb1dda100903127a02b7cca39742972b57c383f79e60b103617a2d0b7a064
torchvision 0.28.0+rocm10.0.0 torchvision-0.28.0%2Brocm10.0.0-cp313-cp313-linux_x86_64.whl 2cacf4672d025c1c24871cb4f7bdd40cc0ed073cb0458b89d665e47c2cc251be
triton 3.8.0+git4cff872c.rocm10.0.0 triton-3.8.0%2Bgit4cff872c.rocm10.0.0-cp313-cp313-linux_x86_64.whl 874f41046c50f84392c8481f074a2f96cfc1dc44a9b05e162246cb7f9175e588
"""  # noqa: E501
FILES = {
    name: (version, f"{INDEX}/{name}/{file}", sha256)
    for name, version, file, sha256 in map(str.split, RECORDED.split("\n")[1:-1])
}


@pytest.fixture(scope="module")
def project() -> Project:
    return load(IMAGES)


@pytest.fixture(scope="module")
def lock() -> Lock:
    return lockfile.read(IMAGES / "locks/amd-gfx1151.toml")


def workspace(project: Project, channel: str, target: str = "gfx1151") -> Workspace:
    folders = Folders(IMAGES, ROOT / "recipes", ROOT / "src", Path("/c"), Path("/s"), Path("/d"))
    return Workspace(folders, project, graph.stack(project, target, channel))


def test_every_channel_has_a_lender_of_its_suite_and_names_no_registry_for_it(project: Project) -> None:
    """Where Debian's images are, each engine knows by its own settings, as apt knows where packages are."""
    assert len(project.channels) >= len(AMD) + 1
    for channel in project.channels.values():
        helper = channel.spec.bootstrap.helper
        assert helper.startswith(f"debian:{channel.spec.apt.suite}")
        assert not names.has_host(helper)


def test_names_that_say_their_registry() -> None:
    for name in ("localhost/x:1", "localhost:5000/x", "a.example/x/y@sha256:0", "host:1/x"):
        assert names.has_host(name)
    for name in ("debian:sid", "library/debian", "debian", "a/b:1.2"):
        assert not names.has_host(name)


@pytest.fixture(scope="module")
def rendered(project: Project, lock: Lock) -> dict[str, Keyed]:
    return {layer.name: layer for layer in workspace(project, "amd").render(lock)}


def test_the_lock_of_amds_packages_is_the_recorded_one(project: Project, lock: Lock) -> None:
    stack = graph.stack(project, "gfx1151", "amd")
    assert locks.missing(stack, lock) == ()
    locks.check_versions(stack, lock)
    held = {
        wheel.name: (wheel.version, wheel.url, wheel.sha256) for entry in lock.wheels.values() for wheel in entry.wheels
    }
    assert held == FILES
    assert {name: entry.index for name, entry in lock.wheels.items()} == {"rocm": "amd", "torch": "amd"}
    assert stack.channel.spec.indexes["amd"].url == INDEX


def test_a_rendered_chain_asks_for_exactly_these_files(rendered: dict[str, Keyed]) -> None:
    asked: dict[str, str] = {}
    for layer in rendered.values():
        for file in layer.layer.files:
            if file.path.startswith("inputs/wheels/"):
                assert isinstance(file.source, bytes)
                found = re.findall(r"^(\S+)==(\S+) --hash=sha256:(\w+)$", file.source.decode(), re.M)
                assert len(found) == len(file.source.decode().splitlines())
                asked |= {name: f"{version} {sha256}" for name, version, sha256 in found}
                assert f"source={file.path.rpartition('/')[0]},target=/media" in layer.layer.dockerfile
    assert asked == {name: f"{version} {sha256}" for name, (version, _, sha256) in FILES.items()}


def test_what_the_images_are_made_of(rendered: dict[str, Keyed]) -> None:
    texts = {name: layer.layer.dockerfile for name, layer in rendered.items()}
    ours = ["base", "rocm", "pytorch", "unsloth", "finetune"]
    assert [name for name in texts if name in ours] == ours
    assert not {"rccl", "rocm-devel"} & texts.keys()
    assert "export ROCM_SDK_TARGET_FAMILY=gfx1151;" in texts["rocm"]
    assert "rocm-sdk-devel" not in "".join(texts.values())
    # one venv, made once and never over the system's packages; its own torchrun is the right one
    for name in ("rocm", "pytorch", "unsloth"):
        assert texts[name].index("[ -x /opt/venv/bin/python ] ||") < texts[name].index("uv pip install")
    assert "COPY files/bin/ /opt/venv/bin/" not in texts["unsloth"]
    assert "libbitsandbytes_rocm715.so" in texts["unsloth"]
    assert "UNSLOTH_FORCE_CPU" not in texts["unsloth"]
    assert "/opt/rccl" not in texts["pytorch"]
    assert 'CMD ["/opt/venv/bin/python"]' in texts["pytorch"]


def environment(dockerfile: str) -> dict[str, str]:
    found = re.findall(r'^(?:ENV )?([A-Z][A-Z0-9_]*)="([^"]*)"(?: \\)?$', dockerfile, re.M)
    return dict(found)


def test_the_environment_is_what_train_would_set(rendered: dict[str, Keyed]) -> None:
    inside = environment(rendered["pytorch"].layer.dockerfile)
    rdna = rules(Facts("rocm", arch="gfx1151", rocm=(7, 15), torch=(2, 13))).environment
    assert inside == {**rdna, "MIOPEN_FIND_MODE": "FAST"}
    # `run` sees ENV and a login shell the file: one list makes both
    assert f"for name in {' '.join(inside)}; do" in rendered["pytorch"].layer.dockerfile


def test_cdna_is_left_to_choose_its_blas(project: Project, lock: Lock) -> None:
    sets = {name: replace(entry, declared="") for name, entry in lock.wheels.items()}
    layers = workspace(project, "amd", "gfx942").render(replace(lock, target="gfx942", wheels=sets))
    text = next(layer for layer in layers if layer.name == "pytorch").layer.dockerfile
    assert environment(text) == {"MIOPEN_FIND_MODE": "FAST"}


@pytest.mark.parametrize("name", AMD)
def test_a_channel_is_honest_and_complete(name: str, project: Project) -> None:
    channel = project.channels[name].spec
    assert re.search(r"not yet run|UNTESTED|UNPROVEN", channel.notice)
    stack = graph.stack(project, "gfx1151", name)
    built = {node.name for node in stack.nodes}
    assert ("rccl" in built) == ("rocm-devel" in built) == (name == "amd-7.2")
    pytorch = stack.node("pytorch")
    assert pytorch.vars["libuv"] is True
    assert pytorch.vars["hip"]
    (torch,) = pytorch.wheels.values()
    exact = dict(re.split(r"(?:\[.*\])?==", line) for line in torch.requirements)
    release = re.search(r"\d+(\.\d+)+", channel.description)
    assert release
    assert exact["torch"].partition("+")[2].startswith(f"rocm{release[0]}" if name != "amd-7.2" else "rocm7.2")
    # torchvision's minor version is torch's and 15
    assert int(exact["torchvision"].split(".")[1]) == int(exact["torch"].split(".")[1]) + 15
    bitsandbytes = stack.node("unsloth").vars["bitsandbytes"]
    assert isinstance(bitsandbytes, list)
    assert "cpu" in bitsandbytes
    assert any(library.startswith("rocm") for library in bitsandbytes)
    assert stack.node("unsloth").vars["cpu_only"] is False


@pytest.mark.parametrize("name", AMD)
def test_no_channel_hides_a_gpu_or_fakes_one(name: str, project: Project) -> None:
    values = project.channels[name].spec.layers["pytorch"].vars
    entries = [*values["environment"], *values["environment_rdna"]]  # type: ignore[misc]
    assert entries
    names = {str(entry).partition("=")[0] for entry in entries}
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]+=\S+", str(entry)) for entry in entries)
    assert not names & set(BANNED_ENV)
    assert not [name for name in names if "EXPANDABLE" in name or name.endswith("_ALLOC_CONF")]


@pytest.mark.parametrize("name", AMD)
def test_a_channel_serves_what_it_has_code_for(name: str, project: Project) -> None:
    spec = project.channels[name].spec
    assert "gfx1151" in spec.targets
    for target in spec.targets:
        assert not project.targets[target].spec.excluded
        assert graph.stack(project, target, name).final.name == "finetune"
    # bitsandbytes has no library for these
    assert not {"gfx900", "gfx906", "gfx90c", "cpu"} & set(spec.targets)


def test_amds_channels_differ_where_they_say_so(project: Project) -> None:
    first, *others = (project.channels[name].spec for name in ("amd", "amd-7.14", "amd-edge"))
    for other in others:
        assert other.targets == first.targets
        assert other.layers["rocm"].packages == first.layers["rocm"].packages
        assert other.layers["pytorch"].packages == first.layers["pytorch"].packages
        assert other.layers["pytorch"].pip == first.layers["pytorch"].pip
        assert other.indexes["amd"].absent == [403, 404]


def test_unsloths_set_is_one_set(project: Project) -> None:
    """The channel debian has its own for what Debian's PyTorch brings; what is asked for must not drift apart."""
    shared = project.layers["unsloth"].spec.pip["unsloth"]
    debians = project.channels["debian"].spec.layers["unsloth"].pip["unsloth"]
    assert set(shared.requirements) - set(debians.requirements) == {"aiohttp>=3.9"}
    assert set(debians.requirements) <= set(shared.requirements)
    assert set(debians.forbid) <= set(shared.forbid)
    brought = {
        re.split(r"[<>=\[]", line)[0]
        for line in project.channels["amd"].spec.layers["pytorch"].pip["torch"].requirements
    }
    assert brought <= set(shared.exclude)
    assert not [line for line in shared.requirements if requirement_fault(line)]


def made_up_lock(space: Workspace) -> Lock:
    """A lock of all that a stack asks for, with versions that nobody has."""
    stack = space.stack
    text = f"a==1 --hash=sha256:{'0' * 64}\n"
    wheels = {
        asked.name: WheelSetLock(
            "3.13", "amd", "2026-09-14T00:00:00Z", asked.sha256, (WheelLock("a", "1", "x", "0" * 64),)
        )
        for asked in wanted.wheel_sets(stack)
    }
    return Lock(
        stack.channel.name,
        stack.target.id,
        AptLock("x", {}, {name: AptPackage("1", 1, "0" * 64) for name in wanted.debian_packages(stack)}),
        {name: PipLock("3.13", text, "") for _, name, _, _ in wanted.pip_sets(stack)},
        wheels,
        archives={name: archive for name, archive, _ in wanted.archives(stack)},
    )


@pytest.mark.parametrize("target", ["gfx1151", "gfx1150", "gfx1030", "gfx942"])
@pytest.mark.parametrize("channel", AMD)
def test_every_channel_renders(channel: str, target: str, project: Project) -> None:
    space = workspace(project, channel, target)
    texts = {layer.name: layer.layer.dockerfile for layer in space.render(made_up_lock(space))}
    assert "ENV USE_LIBUV" not in texts["pytorch"]
    assert ("TORCH_BLAS_PREFER_HIPBLASLT" in texts["pytorch"]) == (target != "gfx942")
    # The wheel brings an RCCL and loads that: where this project compiled one, each copy becomes a link to it, in the
    # step that installs the wheel. Where ROCm has no RCCL for a target there is none to lay.
    relaid = "ln --symbolic --force /opt/rccl/lib/librccl.so.1 $copy" in texts["pytorch"]
    assert relaid == ("rccl" in texts) == (channel == "amd-7.2" and target != "gfx1150")


def test_the_links_to_the_compiled_rccl(project: Project, tmp_path: Path) -> None:
    """The shell of that step, on a tree with the copies of a wheel, and on one that has none."""
    space = workspace(project, "amd-7.2")
    text = next(layer.layer.dockerfile for layer in space.render(made_up_lock(space)) if layer.name == "pytorch")
    found = re.search(r"^    copies=.*?done; \\$", text, re.M | re.S)
    assert found
    script = "set -eu; " + found[0].rstrip("\\ ")
    lib = tmp_path / "torch/lib"
    lib.mkdir(parents=True)
    none = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert none.returncode == 1
    assert none.stderr == "strix-finetune: no wheel of this channel brings librccl; omit the layer rccl\n"
    (lib / "librccl.so").write_bytes(b"the wheel's")
    (lib / "librccl.so.1").write_bytes(b"the wheel's")
    (lib / "libtorch_hip.so").write_bytes(b"kept")
    subprocess.run(["sh", "-c", script], cwd=tmp_path, check=True)
    links = {path.name: str(path.readlink()) for path in lib.iterdir() if path.is_symlink()}
    assert links == dict.fromkeys(("librccl.so", "librccl.so.1"), "/opt/rccl/lib/librccl.so.1")


def test_an_unproven_series_says_so(project: Project) -> None:
    node = graph.stack(project, "gfx1151", "amd-7.2").node("rccl")
    assert node.patches
    for patch in node.patches:
        assert "UNPROVEN" in patch.read_text("utf-8").partition("\n--- ")[0]
    assert node.archives["source"].url.startswith("apt-source:rccl=7.2.4")


def test_an_override_cannot_bring_another_torch(project: Project, tmp_path: Path, lock: Lock) -> None:
    (tmp_path / "override.toml").write_text('[layers.unsloth.requirements.unsloth]\nappend = ["torch==2.14.0"]\n')
    changed = load(IMAGES, tmp_path)
    stack = graph.stack(changed, "gfx1151", "amd")
    assert "torch==2.14.0" in stack.node("unsloth").pip["unsloth"].requirements
    # the set is resolved anew, against what the set of wheels brings, and may not hold it
    assert [str(gap) for gap in locks.missing(stack, lock)] == ["the requirement set unsloth"]
    assert "torch" in stack.node("unsloth").pip["unsloth"].forbid
    (tmp_path / "override.toml").write_text("[layers.pytorch.vars]\nhip = 7\n")
    with pytest.raises(DefinitionError, match="hip"):
        load(IMAGES, tmp_path)
