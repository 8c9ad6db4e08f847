"""The stand-in's packages: real enough to be installed, loaded and read, and the same bytes each time."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

from strix_finetune.codeobject import inspect
from strix_finetune.codeobject import targets as targets_of
from tests.standin.amd import NEWER, RELEASE, TARGETS, archives, libraries, placeholders, rocm, torch
from tests.standin.command import PREFIX, is_left_over, is_ours
from tests.standin.device_code import code, fat_library
from tests.standin.shared_object import shared_object
from tests.standin.wheels import Archive, wheel

PROVEN = ("gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1201")
WAVES = {"gfx942": 64, "gfx1030": 32, "gfx1100": 32, "gfx1151": 32, "gfx1201": 32}


def unpacked(folder: Path, *wheels: Archive) -> Path:
    for archive in wheels:
        with ZipFile(archive.save(folder)) as opened:
            opened.extractall(folder / "site")
    return folder / "site"


def needs(archive: Archive, extra: str, tmp_path: Path) -> list[str]:
    """The packages that an extra adds."""
    with ZipFile(archive.save(tmp_path)) as opened:
        name = next(name for name in opened.namelist() if name.endswith("/METADATA"))
        lines = message_from_bytes(opened.read(name)).get_all("Requires-Dist", [])
    return [line.partition(";")[0] for line in lines if line.endswith(f'extra == "{extra}"')]


def test_the_same_bytes_each_time() -> None:
    first, second = archives(RELEASE, PROVEN), archives(RELEASE, PROVEN)
    assert [item.sha256 for item in first] == [item.sha256 for item in second]
    assert len({item.filename for item in first}) == len(first)


def test_file_names_are_those_of_the_real_packages() -> None:
    names = {item.filename for item in archives(RELEASE, ["gfx1151"])}
    assert names >= {
        "rocm-10.0.0.tar.gz",
        "rocm_bootstrap-0.1.0-py3-none-any.whl",
        "rocm_sdk_core-10.0.0-py3-none-linux_x86_64.whl",
        "rocm_sdk_libraries-10.0.0-py3-none-linux_x86_64.whl",
        "rocm_sdk_device_gfx1151-10.0.0-py3-none-linux_x86_64.whl",
        "rocm_sdk_devel-10.0.0-py3-none-linux_x86_64.whl",
        "triton-3.8.0+git4cff872c.rocm10.0.0-cp313-cp313-linux_x86_64.whl",
        "torch-2.13.0+rocm10.0.0-cp313-cp313-linux_x86_64.whl",
        "amd_torch_device_gfx1151-2.13.0+rocm10.0.0-cp313-cp313-linux_x86_64.whl",
        "amd_torch_device_gfx115x-2.13.0+rocm10.0.0-cp313-cp313-linux_x86_64.whl",
        "torchvision-0.28.0+rocm10.0.0-cp313-cp313-linux_x86_64.whl",
        "amd_torchvision_device_gfx1151-0.28.0+rocm10.0.0-cp313-cp313-linux_x86_64.whl",
        "torchaudio-2.11.0.2+rocm10.0.0-cp313-cp313-linux_x86_64.whl",
    }


@pytest.mark.parametrize(
    ("target", "packs"),
    [
        ("gfx1151", ["gfx1151", "gfx115x"]),
        ("gfx1100", ["gfx1100", "gfx110x"]),
        ("gfx1201", ["gfx1201", "gfx12-0"]),
        ("gfx942", ["gfx942"]),
        ("gfx1030", ["gfx1030"]),
    ],
)
def test_the_packs_of_a_target(target: str, packs: list[str], tmp_path: Path) -> None:
    asked = needs(torch(RELEASE), f"device-{target}", tmp_path)
    assert asked == [f"amd-torch-device-{pack} == 2.13.0+rocm10.0.0" for pack in packs]
    offered = {item.project for item in archives(RELEASE, [target])}
    assert {f"amd-torch-device-{pack}" for pack in packs} <= offered


def test_releases_do_not_mix() -> None:
    newer = {item.filename for item in archives(NEWER, ["gfx1151"])}
    assert (
        newer & {item.filename for item in archives(RELEASE, ["gfx1151"])}
        == {"rocm_bootstrap-0.1.0-py3-none-any.whl"} | {name for name in newer if name.startswith("torchaudio")} & set()
    )
    assert all(item.version < "2" for item in placeholders())


@pytest.mark.parametrize("target", PROVEN)
def test_the_code_is_for_the_target(target: str, tmp_path: Path) -> None:
    path = tmp_path / "code"
    path.write_bytes(code(target))
    report = inspect(path)
    assert (report.targets, [item.wave_size for item in report.code_objects]) == ((target,), [WAVES[target]])


def test_a_library_finds_its_code_in_the_pack(tmp_path: Path) -> None:
    found = {item.project: item for item in archives(RELEASE, ["gfx1151", "gfx1100"])}
    site = unpacked(tmp_path, libraries(RELEASE), torch(RELEASE), found["rocm-sdk-device-gfx1151"])
    rccl = inspect(site / "_rocm_sdk_libraries/lib/librccl.so.1")
    assert (rccl.targets, rccl.warnings) == (("gfx1151",), ())
    without = inspect(site / "torch/lib/libtorch_hip.so")
    assert without.targets == ()
    assert "none of ../.kpack/torch_@GFXARCH@.kpack is there" in without.warnings[0]
    unpacked(tmp_path, found["amd-torch-device-gfx1151"])
    assert inspect(site / "torch/lib/libtorch_hip.so").targets == ("gfx1151",)
    assert targets_of(site) == ("gfx1151",)


def test_a_library_with_its_code_inside(tmp_path: Path) -> None:
    path = tmp_path / "librccl.so.1"
    path.write_bytes(fat_library("librccl.so.1", ["gfx1151", "gfx942"], ["ncclGetVersion"]))
    assert inspect(path).targets == ("gfx942", "gfx1151")
    assert ctypes.CDLL(str(path)).ncclGetVersion() == 100


def test_libraries_are_really_loaded(tmp_path: Path) -> None:
    (tmp_path / "libstandin_b.so.1").write_bytes(shared_object("libstandin_b.so.1", ["in_b"]))
    path = tmp_path / "libstandin_a.so"
    path.write_bytes(
        shared_object("libstandin_a.so", ["first", "second"], needed=["libstandin_b.so.1"], runpath="$ORIGIN")
    )
    loaded = ctypes.CDLL(str(path))
    assert (loaded.first(), loaded.second(), loaded.in_b()) == (100, 100, 100)
    with pytest.raises(AttributeError):
        _ = loaded.third
    (tmp_path / "libstandin_c.so").write_bytes(shared_object("libstandin_c.so", needed=["libstandin_nowhere.so"]))
    with pytest.raises(OSError, match=r"libstandin_nowhere\.so"):
        ctypes.CDLL(str(tmp_path / "libstandin_c.so"))


def test_torch_loads_the_libraries_and_computes_nothing(tmp_path: Path) -> None:
    every = {item.project: item for item in archives(RELEASE, ["gfx1151"]) if item.filename.endswith(".whl")}
    site = unpacked(tmp_path, *(item for name, item in every.items() if name != "torch"), torch(RELEASE))
    source = rocm(RELEASE).save(tmp_path)
    subprocess.run(["tar", "-xzf", source, "-C", tmp_path], check=True)
    (tmp_path / "rocm-10.0.0/src/rocm_sdk").rename(site / "rocm_sdk")
    program = (
        "import json, torch, rocm_sdk; from importlib.metadata import version\n"
        "maps = {line.split()[-1] for line in open('/proc/self/maps') if 'librccl' in line}\n"
        "print(json.dumps([torch.__version__, torch.version.hip, version('torch'), sorted(maps),"
        " str(rocm_sdk.find_libraries('rccl')[0])]))\n"
        "torch.randn(3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={"PYTHONPATH": str(site)}
    )
    rccl = str(site / "_rocm_sdk_libraries/lib/librccl.so.1")
    assert json.loads(done.stdout) == ["2.13.0+rocm10.0.0", "7.15.26333", "2.13.0+rocm10.0.0", [rccl], rccl]
    assert done.returncode == 1
    assert "torch.randn: this torch is a stand-in" in done.stderr


def test_rocm_picks_the_target_where_it_is_built(tmp_path: Path) -> None:
    source = rocm(RELEASE).save(tmp_path)
    subprocess.run(["tar", "-xzf", source, "-C", tmp_path], check=True)
    command = [sys.executable, "setup.py", "-q", "egg_info"]
    for target, right in (("gfx1151", True), ("gfx1", False)):
        env = {"PATH": "/usr/bin:/bin", "ROCM_SDK_TARGET_FAMILY": target}
        done = subprocess.run(command, cwd=tmp_path / "rocm-10.0.0", env=env, capture_output=True, text=True)
        assert (done.returncode == 0) is right, done.stderr
    told = (tmp_path / "rocm-10.0.0/src/rocm.egg-info/requires.txt").read_text()
    assert "[device]\nrocm-sdk-device-gfx1151==10.0.0\n" in told
    assert told.count("[device-gfx") == len(TARGETS)


def test_programs_of_a_wheel_can_be_run(tmp_path: Path) -> None:
    made = wheel("a", "1", {"a/bin/x": "no script\n", "a/y": "#!/bin/sh\n", "a/z": "x"}, scripts={"run": "a:b"})
    with ZipFile(made.save(tmp_path)) as opened:
        modes = {item.filename: item.external_attr >> 16 & 0o777 for item in opened.infolist()}
        assert opened.read("a-1.dist-info/entry_points.txt") == b"[console_scripts]\nrun = a:b\n"
    assert (modes["a/bin/x"], modes["a/y"], modes["a/z"]) == (0o755, 0o755, 0o644)


def test_names_of_images_belong_to_a_run() -> None:
    assert all(is_ours(tag) and not is_left_over(tag) for tag in (f"{PREFIX}:gfx1151", f"{PREFIX}/rocm:gfx1151-0123"))
    assert is_left_over("localhost/strix-standin-99999999/rocm:gfx1151")
    for tag in ("localhost/strix-finetune:gfx1151", "localhost/strix-standin-1:gfx1151", "localhost/strix-standin:x"):
        assert not is_ours(tag)
        assert not is_left_over(tag)
