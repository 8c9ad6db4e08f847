"""The guards of two libraries that fail late when they are wrong: RCCL and bitsandbytes'."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strix_finetune import guard
from strix_finetune.guard.rccl import Relaid
from tests.standin.amd import RELEASE, archives
from tests.standin.device_code import fat_library
from tests.unit.test_guard import TARGET, add, targets_of


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """ROCm's libraries with their side files, as AMD's wheels lay them."""
    names = ("rocm-sdk-libraries", "rocm-sdk-device-gfx1151")
    return add(tmp_path / "site", *(item for item in archives(RELEASE, [TARGET]) if item.project in names))


def stock(site: Path) -> Path:
    return (site / "_rocm_sdk_libraries/lib/librccl.so.1").resolve()


def faults(site: Path, loaded: list[Path] | None = None, **more: object) -> list[str]:
    copies = guard.find_copies([site])
    mapped = [stock(site)] if loaded is None else loaded
    return guard.rccl_faults(copies, mapped, TARGET, targets_of, **more)  # type: ignore[arg-type]


def test_the_stock_library_with_its_side_file_is_right(site: Path) -> None:
    assert faults(site) == []


def test_a_second_library_that_differs_is_named(site: Path) -> None:
    other = site / "torch/lib/librccl.so"
    other.parent.mkdir(parents=True)
    other.write_bytes(fat_library("librccl.so.1", ["gfx942"]))
    (sentence,) = faults(site)
    assert "there are 2 librccl that differ" in sentence
    assert str(other) in sentence
    assert str(stock(site)) in sentence


def test_identical_copies_and_links_are_one(site: Path) -> None:
    (site / "torch/lib").mkdir(parents=True)
    shutil.copy(stock(site), site / "_rocm_sdk_libraries/lib/librccl-copy.so.1")
    (site / "torch/lib/librccl.so").symlink_to(stock(site))
    (site / "torch/lib/librccl.so.2").symlink_to("/nowhere")
    assert faults(site) == []
    assert faults(site, [site / "torch/lib/librccl.so"]) == []


def test_what_torch_loads_counts(site: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "librccl.so.1"
    shutil.copy(stock(site), elsewhere)
    assert faults(site, [elsewhere]) == [f"torch loads {elsewhere}, which was not found in the image"]
    assert "torch loads more than one librccl" in " ".join(faults(site, [stock(site), elsewhere]))
    assert "nor any other librccl" in faults(site, [])[0]
    assert guard.rccl_faults({}, [], TARGET, targets_of) == ["there is no librccl.so"]


def test_a_library_without_the_targets_code_is_named(site: Path) -> None:
    (site / "_rocm_sdk_libraries/.kpack/rccl_lib_gfx1151.kpack").unlink()
    (sentence,) = faults(site)
    assert sentence == f"{stock(site)} holds no device code that is there, and none for gfx1151"
    # ROCm has no RCCL for some targets: then nothing can be asked of it
    assert faults(site, has_code=False) == []
    stock(site).write_bytes(fat_library("librccl.so.1", ["gfx1100", "gfx942"]))
    assert "holds code for gfx942, gfx1100, and none for gfx1151" in faults(site)[0]
    stock(site).write_bytes(b"no library")
    assert "is no ELF file" in faults(site)[0]


def test_the_library_of_this_project_is_the_one(site: Path, tmp_path: Path) -> None:
    ours = tmp_path / "opt/librccl.so.1.0"
    ours.parent.mkdir()
    ours.write_bytes(fat_library("librccl.so.1", [TARGET]))
    stock(site).unlink()
    (site / "_rocm_sdk_libraries/lib/librccl.so.1").symlink_to(ours)
    copies = guard.find_copies([tmp_path])
    (digest,) = copies
    assert guard.rccl_faults(copies, [ours], TARGET, targets_of, relaid=Relaid(ours, digest)) == []
    (sentence,) = guard.rccl_faults(copies, [ours], TARGET, targets_of, relaid=Relaid(ours, "0" * 64))
    assert sentence == f"{ours} is not {ours}, which this project built for gfx1151"


ROCM = ("64", "70", "71", "72", "714", "715")
SHIPPED = [f"libbitsandbytes_{name}.so" for name in ("cpu", "cuda118", "cuda132", *(f"rocm{n}" for n in ROCM))]


@pytest.mark.parametrize(
    ("hip", "name"),
    [
        ("7.15.26333", "rocm715"),
        ("7.14.60850", "rocm714"),
        ("7.2.26043", "rocm72"),
        # not 7 * 10 + 13: that was the fault of bitsandbytes 0.49
        ("7.13.1", "rocm72"),
        ("7.16.26401", "rocm715"),
        ("6.4.43484", "rocm64"),
        ("6.3.1", "rocm64"),
        ("10.1.0", "rocm101"),
        (None, "cpu"),
    ],
)
def test_the_name_that_is_looked_for(hip: str | None, name: str) -> None:
    assert guard.library_name(hip, SHIPPED) == f"libbitsandbytes_{name}.so"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "libbitsandbytes_rocm715.so").write_bytes(fat_library("libbitsandbytes_rocm715.so", [TARGET, "gfx942"]))
    (tmp_path / "libbitsandbytes_cpu.so").write_bytes(b"")
    return tmp_path


def library_faults(package: Path, hip: str | None = "7.15.26333", target: str = TARGET) -> list[str]:
    return guard.library_faults(package, hip, target, targets_of, lambda path: None)


def test_the_library_is_there_and_holds_the_code(package: Path) -> None:
    assert library_faults(package) == []
    assert library_faults(package, None) == []
    assert "holds code for gfx942, gfx1151, and none for gfx906" in library_faults(package, target="gfx906")[0]


def test_a_name_that_is_not_there_is_named(package: Path) -> None:
    (package / "libbitsandbytes_rocm715.so").rename(package / "libbitsandbytes_rocm82.so")
    (sentence,) = library_faults(package, "7.15.26333")
    assert sentence == (
        "bitsandbytes looks for libbitsandbytes_rocm715.so with HIP 7.15.26333, and has cpu, rocm82:"
        " 4-bit and 8-bit would fail"
    )
    (package / "libbitsandbytes_cpu.so").unlink()
    assert "looks for libbitsandbytes_cpu.so with HIP None" in library_faults(package, None)[0]


def test_a_library_that_does_not_load_is_named(package: Path) -> None:
    def load(path: Path) -> None:
        raise OSError("librocrand.so.1: cannot open shared object file")

    (sentence,) = guard.library_faults(package, "7.15.0", TARGET, targets_of, load)
    assert sentence.endswith("rocm715.so does not load: librocrand.so.1: cannot open shared object file")


def test_no_4_bit_on_rocm_6_4_with_rdna_3() -> None:
    assert (
        "rocm64.so computes 4-bit wrongly on gfx1151" in guard.four_bit_faults("libbitsandbytes_rocm64.so", TARGET)[0]
    )
    assert guard.four_bit_faults("libbitsandbytes_rocm64.so", "gfx1030") == []
    assert guard.four_bit_faults("libbitsandbytes_rocm70.so", TARGET) == []
    assert guard.four_bit_faults("libbitsandbytes_cpu.so", TARGET) == []
