"""kpack archives, and the libraries that keep their device code in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from strix_finetune.codeobject import CodeObjectError, LimitExceeded, Malformed, Report, Unsupported, inspect
from strix_finetune.codeobject import msgpack as reader
from tests.unit.codeobject_forge import blob, gfx942, gfx1030, host_elf, kpack, pack, reference

NAME = "lib/librccl.so.1.0"
ENTRIES = [
    (f"{NAME}#0", "gfx942", gfx942()),
    (f"{NAME}#1", "gfx942", gfx942()),
    ("lib/other.so#0", "gfx1030", gfx1030()),
]


def read(tmp_path: Path, content: bytes) -> Report:
    path = tmp_path / "file.kpack"
    path.write_bytes(content)
    return inspect(path)


@pytest.mark.parametrize("scheme", ["none", "zstd-per-kernel"])
def test_both_schemes(scheme: str, tmp_path: Path) -> None:
    report = read(tmp_path, kpack(ENTRIES, scheme))
    assert (report.format, report.targets) == ("kpack", ("gfx942", "gfx1030"))
    assert [(item.source, item.label, item.size, item.kernels, item.wave_size) for item in report.code_objects] == [
        (f"{NAME}#0", "gfx942", 4584, 1, 64),
        (f"{NAME}#1", "gfx942", 4584, 1, 64),
        ("lib/other.so#0", "gfx1030", 3600, 1, 64),
    ]
    assert report.containers[0].encoding == f"kpack {scheme}"


def test_a_key_with_features_is_a_target(tmp_path: Path) -> None:
    report = read(tmp_path, kpack([("a#0", "gfx942:sramecc+:xnack-", gfx942())]))
    assert [item.target_id for item in report.code_objects] == ["gfx942:sramecc+:xnack-"]
    assert report.warnings == ()


def test_a_wrong_key_is_noted(tmp_path: Path) -> None:
    report = read(tmp_path, kpack([("a#0", "gfx1151", gfx942())]))
    assert report.targets == ("gfx942",)
    assert "is labelled gfx1151" in report.warnings[0]


def library(tmp_path: Path, paths: list[str]) -> Path:
    """A library as the splitter leaves it: the code zeroed away, a reference in its place."""
    path = tmp_path / "lib" / "librccl.so.1.0"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(host_elf({".hip_fatbin": bytes(8192), ".rocm_kpack_ref": reference(NAME, paths)}))
    (tmp_path / ".kpack").mkdir(exist_ok=True)
    return path


def test_a_library_is_followed_to_its_side_files(tmp_path: Path) -> None:
    path = library(tmp_path, ["../.kpack/rccl_lib_@GFXARCH@.kpack"])
    (tmp_path / ".kpack/rccl_lib_gfx942.kpack").write_bytes(kpack(ENTRIES[:2]))
    (tmp_path / ".kpack/rccl_lib_gfx1030.kpack").write_bytes(kpack([(f"{NAME}#0", "gfx1030", gfx1030()), *ENTRIES[2:]]))
    (tmp_path / ".kpack/blas_lib_gfx1030.kpack").write_bytes(b"of no interest here")
    report = inspect(path)
    assert (report.format, report.targets, report.sections) == ("elf", ("gfx942", "gfx1030"), ())
    assert [row.objects for row in report.summaries()] == [2, 1], "code of other libraries in the archive is not ours"
    assert report.side_references[0].name == NAME
    assert [Path(name).name for name in report.side_references[0].found] == [
        "rccl_lib_gfx1030.kpack",
        "rccl_lib_gfx942.kpack",
    ]
    assert report.code_objects[0].source == f"rccl_lib_gfx1030.kpack: {NAME}#0"


def test_missing_side_files_are_noted(tmp_path: Path) -> None:
    report = inspect(library(tmp_path, ["../.kpack/rccl_lib_@GFXARCH@.kpack"]))
    assert report.targets == ()
    assert report.warnings == (
        "its device code is in side files and none of ../.kpack/rccl_lib_@GFXARCH@.kpack is there",
    )


def test_a_side_file_without_the_library_is_noted(tmp_path: Path) -> None:
    path = library(tmp_path, ["../.kpack/rccl.kpack"])
    (tmp_path / ".kpack/rccl.kpack").write_bytes(kpack(ENTRIES[2:]))
    report = inspect(path)
    assert report.targets == ()
    assert f"has no code for {NAME}" in report.warnings[0]


def test_a_library_cannot_send_the_reader_anywhere(tmp_path: Path) -> None:
    outside = tmp_path / "secret.kpack"
    outside.write_bytes(kpack(ENTRIES))
    report = inspect(
        library(tmp_path, [str(outside), "../../../etc/passwd", "../.kpack/\0.kpack", "../nowhere/x.kpack"])
    )
    assert report.side_references[0].found == ()


def test_a_damaged_side_file_is_named(tmp_path: Path) -> None:
    path = library(tmp_path, ["../.kpack/rccl.kpack"])
    (tmp_path / ".kpack/rccl.kpack").write_bytes(kpack(ENTRIES)[:-200])
    with pytest.raises(Malformed, match=r"side file .*rccl\.kpack: ") as caught:
        inspect(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("content", "fault", "says"),
    [
        (b"KPAK", Malformed, "header of a kpack archive is cut off"),
        (kpack(ENTRIES, version=2), Unsupported, "kpack archive of version 2"),
        (kpack(ENTRIES)[:-1], Malformed, "is cut off"),
        (kpack(ENTRIES)[:500], Malformed, r"said to begin at byte \d+ of 500"),
        (kpack(ENTRIES, compression_scheme="lzma"), Unsupported, "scheme lzma"),
        (kpack(ENTRIES, zstd_offset=10**15), Malformed, "cut off"),
        (kpack(ENTRIES, zstd_offset=65), LimitExceeded, "blobs, more than"),
        (kpack(ENTRIES, "none", blobs=[]), Malformed, "blob 0 of 0"),
        (kpack(ENTRIES, "none", blobs=[{"offset": 10**18, "size": 4584}] * 3), Malformed, "its blob is cut off"),
        (
            kpack(ENTRIES, "none", blobs=[{"offset": 64, "size": 5}] * 3),
            Malformed,
            "takes 5 bytes, its entry says 4584",
        ),
        (kpack(ENTRIES, toc={"a": {"gfx942": {"original_size": 3}}}), Malformed, "no ordinal"),
        (kpack(ENTRIES, toc={"a": {"gfx942": {"ordinal": 0}}}), Malformed, "a for gfx942: has no original size"),
        (kpack(ENTRIES, toc={"a": {"gfx942": {"ordinal": 77, "original_size": 3}}}), Malformed, "blob 77 of 3"),
        (
            kpack(ENTRIES, toc={"a": {"g": {"ordinal": 0, "original_size": 100}}}),
            Malformed,
            "longer than the 100 bytes",
        ),
        (kpack(ENTRIES, toc={"a": {"g": {"ordinal": 0, "original_size": 10**9}}}), Malformed, "cut off after 4584 of"),
        (kpack(ENTRIES, toc=[1, 2]), Malformed, "no map where one belongs"),
        (kpack(ENTRIES, toc={"a": {"g": 5}}), Malformed, "no map where one belongs"),
        (kpack([])[:68] + b"\xdf\xff\xff\xff\xff", Malformed, "cut off"),
        (b"KPAK" + (1).to_bytes(4, "little") + (16).to_bytes(8, "little") + b"\xc1", Malformed, "no map"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damage_is_one_sentence(content: bytes, fault: type[CodeObjectError], says: str, tmp_path: Path) -> None:
    with pytest.raises(fault, match=says) as caught:
        read(tmp_path, content)
    assert "\n" not in str(caught.value)


def test_a_library_may_have_code_of_its_own_and_a_reference(tmp_path: Path) -> None:
    path = tmp_path / "both.so"
    path.write_bytes(host_elf({".hip_fatbin": blob("v2.hsaco"), ".rocm_kpack_ref": reference(NAME, ["x.kpack"])}))
    (tmp_path / "x.kpack").write_bytes(kpack([(NAME, "gfx1030", gfx1030())]))
    assert inspect(path).targets == ("gfx942", "gfx1030", "gfx1151")


@pytest.mark.parametrize("paths", [[], ["x.kpack"] * 100])
def test_a_reference_that_says_nothing_or_too_much(paths: list[str], tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(host_elf({".rocm_kpack_ref": reference(NAME, paths)}))
    with pytest.raises(Malformed, match=r"\.rocm_kpack_ref: it "):
        inspect(path)


VALUES: list[object] = [None, True, False, 0, 127, 128, 255, 256, 65535, 65536, 2**32, 2**63, -1, -33, 1.5, [], {}]
VALUES += ["", "x" * 31, "x" * 32, "é" * 200, "x" * 70000, b"raw", b"r" * 300, b"r" * 70000]
VALUES += [[1] * 15, [1] * 16, [[]] * 70000, {"a": [1, {"b": "c"}]}]
VALUES += [{str(number): None for number in range(20)}, {str(number): [number] for number in range(70000)}]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value!r:.9}")
def test_any_value_is_passed_over_exactly(value: object) -> None:
    packed = pack(value)
    assert reader.skip(packed + b"rest", 0) == len(packed)
    with pytest.raises(Malformed):
        reader.skip(packed[:-1], 0)
    found, end = reader.unsigned(packed, 0)
    assert end == len(packed)
    assert found == (value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None)
    word, end = reader.text(packed, 0)
    assert end == len(packed)
    assert word == (value if isinstance(value, str) else None)


def test_deep_nesting_costs_no_recursion() -> None:
    assert reader.skip(b"\x91" * 500_000 + b"\x01", 0) == 500_001


@pytest.mark.parametrize(
    "packed", [b"\xd4xy", b"\xd5xyz", b"\xd8" + bytes(17), b"\xc7\x03xabc", b"\xc8\0\x02xab", b"\xc9\0\0\0\x01xa"]
)
def test_extension_values_are_passed_over(packed: bytes) -> None:
    assert reader.skip(packed + b"rest", 0) == len(packed)


def test_a_signed_number_that_is_not_negative() -> None:
    assert reader.unsigned(b"\xd1\x01\x00", 0) == (256, 3)
    assert reader.unsigned(b"\xd1\xff\x00", 0) == (None, 3)
