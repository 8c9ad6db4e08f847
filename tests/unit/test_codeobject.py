"""Real device code: what the reader says is what LLVM's tools say."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import strix_finetune.codeobject as reader
from strix_finetune.codeobject import (
    CodeObject,
    CodeObjectError,
    Report,
    UnknownFormat,
    Unreadable,
    inspect,
    libzstd,
    targets,
)
from strix_finetune.errors import InputError
from tests.unit.codeobject_forge import DATA

# File → label, size, e_flags as llvm-readelf spells them, kernels, wave size, bytes of machine code; in file order.
# From clang-offload-bundler-22 --unbundle and llvm-readelf-22; see data/codeobject/README.md.
LLVM = {
    "plain.so": """
        gfx1151 3856 gfx1151 1 32 512
        gfx90a 4584 gfx90a,xnack,sramecc 1 64 1088""",
    "two-zstd.so": """
        gfx1100 3856 gfx1100 1 32 512
        gfx1151 3856 gfx1151 1 32 512
        gfx1201 3856 gfx1201 1 32 512
        gfx90a 4576 gfx90a,xnack,sramecc 1 64 1088
        gfx942 4576 gfx942,xnack,sramecc 1 64 1088
        gfx1100 4944 gfx1100 2 32 768
        gfx1151 4944 gfx1151 2 32 768
        gfx1201 4944 gfx1201 2 32 768
        gfx90a 5808 gfx90a,xnack,sramecc 2 64 1344
        gfx942 5808 gfx942,xnack,sramecc 2 64 1344""",
    "v2.hsaco": """
        gfx1151 3856 gfx1151 1 32 512
        gfx942 4584 gfx942,xnack,sramecc 1 64 1088""",
    "features-v3.hsaco": """
        gfx11-generic 3856 gfx11-generic,generic_v1 1 32 512
        gfx90a:xnack+ 4584 gfx90a,xnack+,sramecc 1 64 1088
        gfx90a:xnack- 4584 gfx90a,xnack-,sramecc 1 64 1088""",
    "bare-gfx942.hsaco": """
        - 4584 gfx942,xnack-,sramecc+ 1 64 1088""",
    "bare-gfx1030-wave64.hsaco": """
        - 3600 gfx1030 1 64 256""",
}


def spell(item: CodeObject) -> str:
    """A code object in the words of the table above."""
    marks = {"on": "+", "off": "-", "any": ""}
    flags = [item.target]
    flags += [
        f"{name}{marks[value]}" for name, value in (("xnack", item.xnack), ("sramecc", item.sramecc)) if value in marks
    ]
    label = item.label.removeprefix("hipv4-amdgcn-amd-amdhsa--") or "-"
    waves = "/".join(map(str, item.wave_sizes))
    return f"{label} {item.size} {','.join(flags)} {item.kernels} {waves} {item.code_size}"


@pytest.mark.parametrize("name", LLVM)
def test_says_what_llvm_says(name: str) -> None:
    report = inspect(DATA / name)
    expected = [line.strip().replace(",generic_v1", "") for line in LLVM[name].splitlines() if line.strip()]
    assert [spell(item) for item in report.code_objects] == expected
    assert report.warnings == ()
    assert all(item.runs and item.abi == 6 and item.kind == "elf" for item in report.code_objects)


def test_says_where_the_code_lies() -> None:
    report = inspect(DATA / "two-zstd.so")
    assert (report.format, report.sections) == ("elf", (".hip_fatbin",))
    assert [(part.encoding, part.offset, part.entries) for part in report.containers] == [
        ("ccob v3 zstd", 0, 6),
        ("ccob v3 zstd", 4096, 6),
    ]
    assert {item.source for item in report.code_objects} == {".hip_fatbin offset 0", ".hip_fatbin offset 4096"}
    assert inspect(DATA / "v2.hsaco").containers[0].encoding == "ccob v2 zstd"
    assert inspect(DATA / "plain.so").containers[0].encoding == "plain"


def test_targets_ascend_by_generation() -> None:
    assert targets(DATA / "two-zstd.so") == ("gfx90a", "gfx942", "gfx1100", "gfx1151", "gfx1201")
    assert targets(DATA / "features-v3.hsaco") == ("gfx90a", "gfx11-generic")


def test_summaries_add_up_translation_units() -> None:
    summary = next(row for row in inspect(DATA / "two-zstd.so").summaries() if row.target_id == "gfx1151")
    assert (summary.objects, summary.size, summary.code_size, summary.kernels) == (2, 3856 + 4944, 512 + 768, 3)
    assert summary.wave_sizes == (32,)


def test_fixed_features_are_in_the_target_id() -> None:
    assert inspect(DATA / "bare-gfx942.hsaco").code_objects[0].target_id == "gfx942:sramecc+:xnack-"
    ids = [row.target_id for row in inspect(DATA / "features-v3.hsaco").summaries()]
    assert ids == ["gfx90a:xnack+", "gfx90a:xnack-", "gfx11-generic"]


def test_rdna_code_for_waves_of_64_is_seen() -> None:
    assert inspect(DATA / "bare-gfx1030-wave64.hsaco").code_objects[0].wave_size == 64


def test_unlinked_bitcode_is_no_code_for_a_gpu() -> None:
    report = inspect(DATA / "rdc.o")
    assert [(item.target, item.kind, item.runs) for item in report.code_objects] == [("gfx1151", "bitcode", False)]
    assert report.targets == ()


def test_a_host_file_without_device_code_has_none() -> None:
    report = inspect(sys.executable)
    assert (report.code_objects, report.targets, report.format) == ((), (), "elf")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("text", "is no ELF file, offload bundle, code object or kpack archive"),
        ("empty", "is no ELF file"),
        ("missing", "cannot be read: No such file or directory"),
        ("folder", "is not a regular file"),
        ("pipe", "is not a regular file"),
    ],
)
def test_what_is_no_such_file_is_one_sentence(kind: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "it"
    if kind == "text":
        path.write_text("hello " * 20)
    elif kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        import os

        os.mkfifo(path)
    with pytest.raises((UnknownFormat, Unreadable), match=says) as caught:
        inspect(path)
    assert isinstance(caught.value, InputError)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_plain_files_work_where_the_rest_of_the_driver_is_missing(tmp_path: Path) -> None:
    """As in an image: the folder alone, no site packages of ours, nothing of this project imported."""
    shutil.copytree(Path(reader.__file__).parent, tmp_path / "codeobject", ignore=shutil.ignore_patterns("__pycache__"))
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import codeobject
print(*codeobject.targets({str(DATA / "plain.so")!r}))
try:
    codeobject.inspect("/nowhere")
except codeobject.CodeObjectError as error:
    print(error.exit_code, error)
foreign = ("strix_finetune", "click", "pydantic", "backports")
print(sorted(name for name in sys.modules if name.split(".")[0] in foreign))
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "gfx90a gfx1151",
        "2 /nowhere: cannot be read: No such file or directory",
        "[]",
    ]


def test_where_nothing_has_zstd_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compression", "compression.zstd", "backports", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(libzstd, "available", lambda: False)
    with pytest.raises(CodeObjectError, match=r"nor the system has zstd; install backports\.zstd"):
        inspect(DATA / "two-zstd.so")
    assert inspect(DATA / "plain.so").targets == ("gfx90a", "gfx1151")


def test_a_report_becomes_json() -> None:
    import json

    report = inspect(DATA / "features-v3.hsaco")
    found = json.loads(json.dumps(report.to_json()))
    assert found["targets"] == ["gfx90a", "gfx11-generic"]
    assert found["code_objects"][0]["wave_sizes"] == [32]
    assert set(found) >= set(Report.__dataclass_fields__)
