"""Each guard of the AMD channels sees the trap that it is for, in a site-packages tree of stub wheels."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from strix_finetune import guard
from strix_finetune.codeobject import CodeObjectError, inspect
from strix_finetune.guard.sites import same_version
from tests.standin.amd import NEWER, RELEASE, archives, devel, placeholders
from tests.standin.device_code import fat_library, side_file
from tests.standin.wheels import Archive, wheel

TARGET = "gfx1151"
ENDINGS = ("-any.whl", "-py3-none-linux_x86_64.whl", f"-{RELEASE.tag}.whl")
LOCKED = {
    "torch": "2.13.0+rocm10.0.0",
    "triton": "3.8.0+git4cff872c.rocm10.0.0",
    "rocm-sdk-core": "10.0.0",
    "amd-torch-device-gfx1151": "2.13.0+rocm10.0.0",
    "amd-torch-device-gfx115x": "2.13.0+rocm10.0.0",
}


targets_of = guard.reading(inspect, CodeObjectError)


def add(site: Path, *wheels: Archive) -> Path:
    """Unpack wheels as an installer does."""
    site.mkdir(exist_ok=True)
    for archive in wheels:
        if archive.filename.endswith(".whl"):
            saved = archive.save(site.parent)
            with ZipFile(saved) as opened:
                opened.extractall(site)
            saved.unlink()
    return site


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    offered = [item for item in archives(RELEASE, [TARGET]) if item.project != "rocm-sdk-devel"]
    here = [item for item in offered if item.filename.endswith(ENDINGS)]
    site = add(tmp_path_factory.mktemp("shipped") / "site", *here)
    (site / "rocm_sdk").mkdir()
    return site


@pytest.fixture
def site(shipped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shipped, tmp_path / "site"))


def every_fault(site: Path, target: str = TARGET) -> list[str]:
    """What all guards together say of a site."""
    have = guard.installed(site)
    return [
        *guard.version_faults(have, LOCKED),
        *(fault for item in have for fault in guard.record_faults(item, contents=True)),
        *guard.foreign_distributions(have),
        *guard.foreign_libraries([site])[0],
        *guard.torch_faults(have),
        *guard.triton_faults(have, site),
        *guard.devel_faults(have, site),
        *guard.pack_faults(have, site, target),
        *guard.kpack_faults(site, target, targets_of),
        *guard.torch_code_faults(site, target, targets_of),
    ]


def test_the_real_layout_has_no_fault(site: Path) -> None:
    assert every_fault(site) == []


def test_stubs_are_known_for_what_they_are(site: Path, tmp_path: Path) -> None:
    assert guard.stand_in(guard.installed(site)).startswith(("rocm-sdk-core", "torch"))
    real = add(tmp_path / "real", wheel("torch", "2.13.0+rocm10.0.0", {"torch/__init__.py": ""}))
    assert guard.stand_in(guard.installed(real)) == ""


def test_an_image_for_another_target_is_seen(site: Path) -> None:
    faults = " ".join(every_fault(site, "gfx1100"))
    assert "amd-torch-device-gfx1151 2.13.0+rocm10.0.0 is code for gfx1151, and this image is for gfx1100" in faults
    assert "holds code for gfx1151, and none for gfx1100" in faults
    assert "rocm-sdk-device-gfx1100 is missing" in faults


Spoil = Callable[[Path], object]


def newer_torch(site: Path) -> None:
    add(site, wheel("torch", "2.14.0", {"torch/__init__.py": ""}, tag="py3-none-any"))


def torch_of_pypi(site: Path) -> None:
    """As when a later step replaces it: the old .dist-info goes."""
    shutil.rmtree(site / "torch-2.13.0+rocm10.0.0.dist-info")
    newer_torch(site)


def no_pack(site: Path) -> None:
    shutil.rmtree(site / "amd_torch_device_gfx1151-2.13.0+rocm10.0.0.dist-info")
    (site / "torch/.kpack/torch_gfx1151.kpack").unlink()


def placeholder_pack(site: Path) -> None:
    no_pack(site)
    add(site, placeholders()[0])


def no_family_pack(site: Path) -> None:
    shutil.rmtree(site / "amd_torch_device_gfx115x-2.13.0+rocm10.0.0.dist-info")


def triton_of_pypi(site: Path) -> None:
    add(site, wheel("triton-generic", "3.9.0", {"triton/__init__.py": ""}, tag="py3-none-any"))


def other_triton(site: Path) -> None:
    shutil.rmtree(site / "triton-3.8.0+git4cff872c.rocm10.0.0.dist-info")
    shutil.rmtree(site / "triton")
    add(site, wheel("triton", "3.9.0", {"triton/__init__.py": "", "triton/backends/nvidia/__init__.py": ""}))


def cuda(site: Path) -> None:
    add(site, wheel("nvidia-cublas-cu13", "13.1", {"nvidia/cublas/lib/libcublas.so.13": b"x"}))


def wrong_kpack(site: Path) -> None:
    (site / "torch/.kpack/torch_gfx1151.kpack").write_bytes(side_file(["lib/libtorch_hip.so"], "gfx1100"))


def second_kpack(site: Path) -> None:
    (site / "torch/.kpack/torch_gfx942.kpack").write_bytes(side_file(["lib/libtorch_hip.so"], "gfx942"))


def cut_kpack(site: Path) -> None:
    path = site / "_rocm_sdk_libraries/.kpack/rccl_lib_gfx1151.kpack"
    path.write_bytes(path.read_bytes()[:20])


def no_record(site: Path) -> None:
    (site / "rocm_bootstrap-0.1.0.dist-info/RECORD").unlink()


def touched(site: Path) -> None:
    path = site / "torch/_rocm_init.py"
    path.write_text(path.read_text().replace("def", "DEF"))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (newer_torch, "torch is installed 2 times: 2.13.0+rocm10.0.0, 2.14.0; locked is 2.13.0+rocm10.0.0"),
        (newer_torch, "there is not one torch but 2"),
        (torch_of_pypi, "torch is 2.14.0, locked is 2.13.0+rocm10.0.0"),
        (no_pack, "amd-torch-device-gfx1151 2.13.0+rocm10.0.0 is missing: without it torch has no code for gfx1151"),
        (no_pack, "torch/.kpack holds no archive for gfx1151"),
        (placeholder_pack, "amd-torch-device-gfx1151 is 0.0.1.dev0, and torch 2.13.0+rocm10.0.0 asks for"),
        (no_family_pack, "amd-torch-device-gfx115x 2.13.0+rocm10.0.0 is missing"),
        (triton_of_pypi, "is brought by triton 3.8.0+git4cff872c.rocm10.0.0 and triton-generic 3.9.0"),
        (other_triton, "triton 3.9.0 has no AMD backend"),
        (other_triton, "asks for triton 3.8.0+git4cff872c.rocm10.0.0, and it is 3.9.0"),
        (cuda, "nvidia-cublas-cu13 13.1 is made for other GPUs"),
        (cuda, "libcublas.so.13 is made for other GPUs"),
        (wrong_kpack, "torch_gfx1151.kpack holds code for gfx1100, and none for gfx1151"),
        (second_kpack, "torch_gfx942.kpack holds code for gfx942, and none for gfx1151"),
        (cut_kpack, "rccl_lib_gfx1151.kpack: its table of contents"),
        (touched, "torch 2.13.0+rocm10.0.0 does not have the content of its wheel in torch/_rocm_init.py"),
        (lambda site: (site / "_rocm_sdk_core/lib/libamdhip64.so.7").unlink(), "10.0.0 lacks _rocm_sdk_core/lib"),
        (lambda site: shutil.rmtree(site / "triton"), "triton 3.8.0+git4cff872c.rocm10.0.0 lacks triton/__init__.py,"),
        (lambda site: add(site, devel(RELEASE)), "rocm-sdk-devel 10.0.0 is for building only"),
        (lambda site: (site / "_rocm_sdk_devel").mkdir(), "_rocm_sdk_devel holds ROCm's development files"),
        (no_record, "rocm-bootstrap 0.1.0 has no RECORD"),
    ],
)  # fmt: skip
def test_a_trap_is_named(spoil: Spoil, sentence: str, site: Path) -> None:
    spoil(site)
    faults = every_fault(site)
    assert any(sentence in fault for fault in faults), faults
    assert all("\n" not in fault for fault in faults)


def test_a_locked_package_that_is_missing_is_named() -> None:
    assert guard.version_faults([], {"torch": "2.13.0+rocm10.0.0"}) == ["torch is missing, locked is 2.13.0+rocm10.0.0"]


def test_spellings_of_one_version_are_one() -> None:
    assert same_version("3.8.0+git4cff872c-rocm10.0.0", "3.8.0+GIT4cff872c.rocm10.0.0")
    assert not same_version("2.13.0+rocm10.0.0", "2.13.0+rocm7.0.0")
    assert not same_version("2.13.0", "2.13.0+rocm10.0.0")


def test_the_lock_is_read_from_hashed_texts(tmp_path: Path) -> None:
    text = "Torch==2.13.0+rocm10.0.0 --hash=sha256:00\nmarkupsafe==3.0.3 \\\n    --hash=sha256:11\n# torch==1\n"
    (tmp_path / "a.txt").write_text(text)
    assert guard.read_locked([tmp_path / "a.txt"]) == {"torch": "2.13.0+rocm10.0.0", "markupsafe": "3.0.3"}


def test_what_distributions_want_of_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wants = ["Other_One>=2", "gone", "extra-one; extra == 'x'", "windows; sys_platform == 'win32'", "second==1"]
    first = add(tmp_path / "first", wheel("app", "1", {}, requires=wants), wheel("second", "1", {}))
    second = add(tmp_path / "second", wheel("other.one", "1.9", {}), wheel("second", "2", {}))
    with monkeypatch.context() as patched:
        patched.setattr(sys, "path", [str(first), str(second), str(first)])
        seen = guard.imported()
    assert sorted(map(str, seen.values())) == ["app 1", "other-one 1.9", "second 1"]
    assert guard.requirement_faults([seen["app"]], seen) == (["app wants Other_One>=2, and it is 1.9"], {"gone"})


@pytest.mark.parametrize(
    ("hip", "wanted", "rocm", "locked", "sentence"),
    [
        ("7.15.26333", "7.15", "10.0.0", "10.0.0", ""),
        ("7.15.26333", "any", None, "10.0.0", ""),
        ("7.15.26333", "7.15", "10.0.0-26333", "10.0.0", ""),
        ("7.15.26333", "7.15", "10.0.01", "10.0.0", "torch is built for ROCm 10.0.01"),
        (None, "", None, "", ""),
        (None, "7.15", None, "10.0.0", "torch.version.hip is not set: this torch is no ROCm build"),
        (None, "any", None, "", "torch.version.hip is not set"),
        ("7.1.25424", "7.15", None, "", "torch is built for HIP 7.1.25424, the channel says 7.15"),
        ("7.15.1", "7.1", None, "", "torch is built for HIP 7.15.1, the channel says 7.1"),
        ("7.15.26333", "7.15", "10.1.0", "10.0.0", "torch is built for ROCm 10.1.0, locked is ROCm 10.0.0"),
        ("7.2.1", "", None, "", "and this channel's is without GPU support"),
    ],
)
def test_the_build_of_torch(hip: str | None, wanted: str, rocm: str | None, locked: str, sentence: str) -> None:
    faults = guard.build_faults(hip, wanted, rocm, locked)
    assert (faults == []) if not sentence else (len(faults) == 1 and sentence in faults[0]), faults


def test_the_version_is_read_and_nothing_imported(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(site)
    assert guard.torch_version() == guard.TorchVersion("2.13.0+rocm10.0.0", "7.15.26333", "10.0.0", None)
    assert "torch" not in sys.modules
    shutil.rmtree(site / "torch")
    importlib.invalidate_caches()
    monkeypatch.setattr(sys, "path", [str(site)])
    with pytest.raises(ModuleNotFoundError, match="there is no torch"):
        guard.torch_version()


def test_torch_with_its_code_inside(tmp_path: Path) -> None:
    """PyTorch's own wheels have no packs: libtorch_hip.so holds the code of many targets."""
    files: dict[str, bytes | str] = {
        "torch/__init__.py": "",
        "torch/lib/libtorch_hip.so": fat_library("libtorch_hip.so", ["gfx942", "gfx1151"]),
    }
    site = add(tmp_path / "site", wheel("torch", "2.11.0+rocm7.2", files))
    assert guard.pack_faults(guard.installed(site), site, TARGET) == []
    assert guard.torch_code_faults(site, TARGET, targets_of) == []
    assert "and none for gfx1103" in guard.torch_code_faults(site, "gfx1103", targets_of)[0]
    (site / "torch/lib/libtorch_hip.so").unlink()
    assert "is missing: this torch is no ROCm build" in guard.torch_code_faults(site, TARGET, targets_of)[0]


def test_a_target_without_packs_is_told_which_there_are(site: Path) -> None:
    faults = guard.pack_faults(guard.installed(site), site, "gfx906")
    assert any("torch 2.13.0+rocm10.0.0 has no device pack for gfx906; it has them for gfx1010," in f for f in faults)


def test_versions_of_another_release_are_seen(tmp_path: Path) -> None:
    mixed = [item for item in archives(NEWER, [TARGET]) if "cp312" not in item.filename and "win" not in item.filename]
    site = add(tmp_path / "site", *mixed)
    faults = guard.version_faults(guard.installed(site), LOCKED)
    assert "torch is 2.14.0+rocm10.1.0, locked is 2.13.0+rocm10.0.0" in faults
