"""What the launcher makes of machines: which GPUs a container gets, on laptops, desktops, servers and WSL2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strix_finetune import cli, hostgpu, hostwsl
from strix_finetune.engine.base import EngineInfo, Mount
from strix_finetune.errors import InputError
from strix_finetune.hostfacts import read
from strix_finetune.launch import Host, Launch, plan
from strix_finetune.workspace import Options, open_workspace
from tests.unit.doctor.hosts import DEBIAN, FEDORA, MI300X, PHOENIX, RX7700S, Tree
from tests.unit.doctor.scenes import desktop, fedora_halo, server, wsl

DOCKER = EngineInfo("docker", "28.3.1", "1.51", "unix:///x", rootless=False, runtime="runc", cdi=True)
ENV = {"HOME": "/home/kim"}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def laptop(tree: Tree) -> Tree:
    return tree.system(FEDORA, "6.18.9-200.fc43.x86_64", memory=30).user().gpus(RX7700S, PHOENIX)


def host(tree: Tree, target: str, *gpus: int, **env: str) -> Host:
    return read(ENV | env, target=target, gpus=gpus, interactive=False, root=tree.root)


def launched(tree: Tree, target: str, *gpus: int, **env: str) -> Launch:
    return plan("i", ["x"], host(tree, target, *gpus, **env), DOCKER)


def devices(tree: Tree, target: str, *gpus: int) -> list[str]:
    return [f"/{Path(path).relative_to(tree.root)}" for path in launched(tree, target, *gpus).request.devices]


def test_the_one_gpu_of_a_strix_halo(tree: Tree) -> None:
    fedora_halo(tree)
    assert devices(tree, "gfx1151") == ["/dev/kfd", "/dev/dri/renderD128"]
    assert devices(tree, "") == []
    assert launched(tree, "gfx1151").notes == ()


def test_the_small_gpu_of_a_laptop_or_desktop_stays_hidden(tree: Tree) -> None:
    laptop(tree)
    assert devices(tree, "gfx1102") == ["/dev/kfd", "/dev/dri/renderD128"]
    assert launched(tree, "gfx1102").notes == ("the container does not get gfx1103 (renderD129); --gpu chooses",)
    # who has images for the small one gets that
    assert devices(tree, "gfx1103") == devices(tree, "gfx1103", 1) == ["/dev/kfd", "/dev/dri/renderD129"]


def test_the_card_of_a_desktop_whose_processor_comes_first(tree: Tree) -> None:
    desktop(tree)
    assert devices(tree, "gfx1100") == ["/dev/kfd", "/dev/dri/renderD129"]


def test_no_variable_hides_or_fakes_a_gpu(tree: Tree) -> None:
    """HIP_VISIBLE_DEVICES of a host counts its GPUs, and would name another one, or none, in the container."""
    laptop(tree)
    stale = {"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}
    made = launched(tree, "gfx1102", **stale, GPU_DEVICE_ORDINAL="1", HSA_OVERRIDE_GFX_VERSION="11.0.0")
    assert not [name for name in made.request.env if name.endswith(("DEVICES", "ORDINAL", "VERSION"))]
    said = "CUDA_VISIBLE_DEVICES, GPU_DEVICE_ORDINAL, HIP_VISIBLE_DEVICES, HSA_OVERRIDE_GFX_VERSION, ROCR_VISIBLE"
    assert any(note.startswith(said) for note in made.notes)


def test_a_relative_of_the_target_is_given_where_there_is_nothing_else(tree: Tree) -> None:
    laptop(tree)
    assert devices(tree, "gfx1100") == ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129"]


def test_gpus_by_number(tree: Tree) -> None:
    server(tree)
    assert len(devices(tree, "gfx942")) == 9
    assert devices(tree, "gfx942", 3, 1, 3) == ["/dev/kfd", "/dev/dri/renderD131", "/dev/dri/renderD129"]
    assert len(host(tree, "gfx942", 3, 1).hidden) == 6
    with pytest.raises(InputError, match=r"there is no GPU 8; this host has 0 \(gfx942\), 1 \(gfx942\), "):
        host(tree, "gfx942", 8)
    with pytest.raises(InputError, match="GPU 2 is gfx942, and the image is for gfx1100; leave --target out"):
        host(tree, "gfx1100", 2)
    with pytest.raises(InputError, match="uses no GPU"):
        host(tree, "", 0)


def test_nodes_count_in_their_order(tree: Tree) -> None:
    tree.system(DEBIAN, "6.18.9").gpus(*[MI300X] * 11, PHOENIX)
    assert [gpu.gfx for gpu in hostgpu.gpus(tree.root)] == ["gfx942"] * 11 + ["gfx1103"]


def test_what_is_meant_where_nobody_says_it_is_the_largest(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hostgpu.found(desktop(tree).root) == ["gfx1100", "gfx1036"]
    there = hostgpu.gpus(tree.root)
    monkeypatch.setattr(hostgpu, "gpus", lambda root=Path("/"): there)
    stack = open_workspace(Options(), {"HOME": str(tree.root)}).stack
    assert (stack.target.id, stack.channel.name) == ("gfx1100", "amd")


def test_a_driver_that_names_no_render_node(tree: Tree) -> None:
    laptop(tree)
    for path in (tree.root / hostgpu.TOPOLOGY).glob("*/properties"):
        path.write_text(path.read_text().replace("drm_render_minor", "drm_render_major"))
    assert devices(tree, "gfx1102") == ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129"]
    assert host(tree, "gfx1102").hidden == ()


def test_a_name_for_all_devices_is_not_taken_for_one(tree: Tree) -> None:
    laptop(tree)
    nodes = [{"path": "/dev/kfd"}]
    spec = {"kind": "amd.com/gpu", "devices": [{"name": "all", "containerEdits": {"deviceNodes": nodes}}]}
    tree.put("etc/cdi/amd.json", json.dumps(spec))
    assert host(tree, "gfx1102").cdi
    assert devices(tree, "gfx1102") == ["/dev/kfd", "/dev/dri/renderD128"]
    tree.gone("dev/dri/renderD129").drop(f"{hostgpu.TOPOLOGY}/2/properties")
    assert launched(tree, "gfx1102").request.devices == ("amd.com/gpu=all",)


# WSL2


def test_wsl_hands_on_dxg_and_both_libraries(tree: Tree) -> None:
    wsl(tree)
    made = launched(tree, "gfx1151", HSA_ENABLE_DXG_DETECTION="1").request
    root = tree.root
    assert made.devices == (f"{root}/dev/dxg",)
    assert made.env["HSA_ENABLE_DXG_DETECTION"] == "1"
    bridge = str(root / "opt/rocm/lib/librocdxg.so.1")
    for source, target in (
        (str(root / "usr/lib/wsl/lib/libdxcore.so"), "/usr/lib/libdxcore.so"),
        (bridge, "/usr/lib/librocdxg.so"),
        (bridge, "/usr/lib/librocdxg.so.1"),
    ):
        assert Mount(source, target, read_only=True) in made.mounts
    assert launched(tree, "gfx1151", HSA_ENABLE_DXG_DETECTION="1").notes == ()
    # the image for no GPU gets nothing of it
    plain = launched(tree, "").request
    assert plain.devices == ()
    assert not [mount for mount in plain.mounts if "dx" in mount.target]
    assert "HSA_ENABLE_DXG_DETECTION" not in plain.env
    with pytest.raises(InputError, match="Windows chooses the GPU that WSL lends"):
        host(tree, "gfx1151", 0)


def test_a_library_that_is_a_link_is_mounted_as_the_file_that_it_is(tree: Tree) -> None:
    wsl(tree).rename("opt/rocm/lib/librocdxg.so.1", "opt/rocm/lib/librocdxg.so.1.2.2")
    (tree.root / "opt/rocm/lib/librocdxg.so").symlink_to("librocdxg.so.1.2.2")
    found = hostwsl.find(tree.root)
    assert found
    assert found.bridge == str(tree.root / "opt/rocm/lib/librocdxg.so.1.2.2")


def test_wsl_without_librocdxg_leaves_it_to_the_image(tree: Tree) -> None:
    wsl(tree).drop("opt/rocm/lib/librocdxg.so.1")
    made = launched(tree, "gfx1151")
    assert [mount.target for mount in made.request.mounts if "dx" in mount.target] == ["/usr/lib/libdxcore.so"]
    assert any("this WSL has no librocdxg" in note for note in made.notes)


def test_wsl_that_lends_no_gpu(tree: Tree) -> None:
    wsl(tree).drop("usr/lib/wsl/lib/libdxcore.so")
    with pytest.raises(InputError, match=r"no /usr/lib/wsl/lib/libdxcore\.so; run wsl\.exe --update"):
        host(tree, "gfx1151")
    tree.drop("dev/dxg")
    assert launched(tree, "gfx1151").request.devices == ()
    assert hostwsl.find(fedora_halo(Tree(tree.root / "other")).root) is None


# the command line


@pytest.mark.parametrize("words", [["run", "--gpu", "0", "--", "x"], ["shell", "--gpu", "0"]])
def test_a_gpu_that_is_not_there(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostgpu, "gpus", lambda root=Path("/"): ())
    assert cli.main(words) == 2
    assert capsys.readouterr().err == "error: there is no GPU 0; this host has none\n"


def test_gpus_of_two_kinds(tree: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    there = hostgpu.gpus(laptop(tree).root)
    monkeypatch.setattr(hostgpu, "gpus", lambda root=Path("/"): there)
    assert cli.main(["run", "--gpu", "0", "--gpu", "1", "x"]) == 2
    assert "no image is for gfx1102 and gfx1103 at once; name GPUs of one kind" in capsys.readouterr().err
