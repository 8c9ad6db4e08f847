"""Wheels, zips and folders: every file with device code in them, and nothing unpacked."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from strix_finetune.codeobject import (
    CodeObjectError,
    LimitExceeded,
    Limits,
    Malformed,
    UnknownFormat,
    Unreadable,
    inspect,
    scan,
    targets,
)
from strix_finetune.codeobject.source import FileSource
from tests.unit.codeobject_forge import DATA, blob, ccob, host_elf, kpack, reference, two_targets


def wheel(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def padded(content: bytes) -> bytes:
    """A library whose device code begins and whose section table lies megabytes in: reading goes back and forth."""
    return host_elf({".text": b"\xc3" * (3 << 20), ".hip_fatbin": content, ".debug": b"d" * (3 << 20)})


MEMBERS = {
    "pkg/__init__.py": b"import ctypes\n" * 100,
    "pkg/lib/zstd.so": blob("two-zstd.so"),
    "pkg/lib/plain.so": blob("plain.so"),
    "pkg/lib/large.so": padded(two_targets()),
    "pkg/lib/compressed.so": padded(ccob(two_targets(), 1, "zlib")),
    "pkg/lib/host.so": host_elf({".text": b"\xc3" * 200}),
    "pkg/kernels.kpack": kpack([("a#0", "gfx942", blob("bare-gfx942.hsaco"))]),
    "pkg/split.so": host_elf({".rocm_kpack_ref": reference("a", ["kernels.kpack"])}),
    "pkg/gemm.hsaco": blob("v2.hsaco"),
    "pkg/short.so": b"\x7fELF",
}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_a_wheel_is_read_through(method: int, tmp_path: Path) -> None:
    path = wheel(tmp_path / "pkg-1-py3-none-any.whl", MEMBERS, method)
    found = {report.path.removeprefix(f"{path}/"): report.targets for report in scan(path)}
    assert found == {
        "pkg/lib/zstd.so": ("gfx90a", "gfx942", "gfx1100", "gfx1151", "gfx1201"),
        "pkg/lib/plain.so": ("gfx90a", "gfx1151"),
        "pkg/lib/large.so": ("gfx942", "gfx1030"),
        "pkg/lib/compressed.so": ("gfx942", "gfx1030"),
        "pkg/kernels.kpack": ("gfx942",),
        "pkg/split.so": (),
        "pkg/gemm.hsaco": ("gfx942", "gfx1151"),
    }
    assert targets(path) == ("gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1201")
    assert list(tmp_path.iterdir()) == [path]


def test_a_member_says_what_the_file_says(tmp_path: Path) -> None:
    path = wheel(tmp_path / "a.zip", {"two-zstd.so": blob("two-zstd.so")})
    (member,) = scan(path)
    assert member.code_objects == inspect(DATA / "two-zstd.so").code_objects
    assert member.containers == inspect(DATA / "two-zstd.so").containers


def test_a_folder_with_libraries_links_and_wheels(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/librccl.so.1.0").write_bytes(blob("plain.so"))
    (tmp_path / "lib/librccl.so.1").symlink_to("librccl.so.1.0")
    (tmp_path / "lib/librccl.so").symlink_to("librccl.so.1")
    (tmp_path / "lib/loop").symlink_to(tmp_path)
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "data.zip").write_bytes(wheel(tmp_path / "a.whl", {"x.so": blob("v2.hsaco")}).read_bytes())
    os.mkfifo(tmp_path / "pipe")
    found = [(report.path.removeprefix(f"{tmp_path}/"), report.targets) for report in scan(tmp_path)]
    assert found == [("a.whl/x.so", ("gfx942", "gfx1151")), ("lib/librccl.so.1.0", ("gfx90a", "gfx1151"))]


def test_one_bad_file_among_many_is_told_and_passed_over(tmp_path: Path) -> None:
    wheel(tmp_path / "a.whl", {"bad.so": blob("plain.so")[:9000], "good.so": blob("plain.so")})
    (tmp_path / "bad.hsaco").write_bytes(blob("v2.hsaco")[:900])
    (tmp_path / "broken.whl").write_bytes(b"PK\x03\x04" + bytes(500))
    (tmp_path / "good.so").write_bytes(blob("plain.so"))
    faults: list[CodeObjectError] = []
    found = [report.path.removeprefix(f"{tmp_path}/") for report in scan(tmp_path, faults.append)]
    assert found == ["a.whl/good.so", "good.so"]
    assert [fault.path.removeprefix(f"{tmp_path}/") for fault in faults] == ["a.whl/bad.so", "bad.hsaco", "broken.whl"]
    with pytest.raises(CodeObjectError, match=r"a\.whl/bad\.so: "):
        list(scan(tmp_path))


def test_a_folder_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(Unreadable, match="Permission denied"):
        list(scan(tmp_path))


def test_a_single_file_always_raises(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"nothing" * 50)
    faults: list[CodeObjectError] = []
    with pytest.raises(UnknownFormat):
        list(scan(path, faults.append))
    assert faults == []


def test_inspect_sends_wheels_to_scan(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormat, match=r"archive of files; scan\(\)"):
        inspect(wheel(tmp_path / "a.whl", {"x": b"y"}))


def test_an_empty_zip_holds_nothing(tmp_path: Path) -> None:
    assert list(scan(wheel(tmp_path / "a.zip", {}))) == []


@pytest.mark.parametrize("cut", [10, 1000, 5000, 20000])
def test_a_wheel_that_was_cut_off(cut: int, tmp_path: Path) -> None:
    path = wheel(tmp_path / "a.whl", MEMBERS)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(Malformed, match=r"a\.whl: is no readable zip file"):
        list(scan(path))


def test_a_member_whose_bytes_were_changed(tmp_path: Path) -> None:
    path = wheel(tmp_path / "a.whl", {"x.so": blob("plain.so")}, zipfile.ZIP_STORED)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    # A stored member is only known to be wrong at its end, where its checksum is.
    with pytest.raises(Malformed, match=r"a\.whl/x\.so: cannot be unpacked: Bad CRC-32"):
        list(scan(path))


def test_a_member_that_lies_about_its_size(tmp_path: Path) -> None:
    path = wheel(tmp_path / "a.whl", {"x.so": blob("plain.so")})
    content = path.read_bytes()
    size = len(blob("plain.so")).to_bytes(4, "little")
    path.write_bytes(content.replace(size, (10**9).to_bytes(4, "little")))
    with pytest.raises(CodeObjectError, match=r"a\.whl/x\.so: "):
        list(scan(path))


def test_an_encrypted_member(tmp_path: Path) -> None:
    path = wheel(tmp_path / "a.whl", {"x.so": blob("plain.so")})
    content = bytearray(path.read_bytes())
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(Malformed, match=r"a\.whl/x\.so: cannot be unpacked: File .*encrypted"):
        list(scan(path))


def test_a_huge_directory_is_not_read(tmp_path: Path) -> None:
    path = wheel(tmp_path / "a.whl", {"x": b"y"})
    with path.open("r+b") as file:
        content = path.read_bytes()
        at = content.rindex(b"PK\x05\x06")
        file.seek(64 << 20)
        file.write(content[at : at + 12] + (60 << 20).to_bytes(4, "little") + (1 << 20).to_bytes(4, "little") + b"\0\0")
    with pytest.raises(LimitExceeded, match="its directory takes more than 32 MiB"):
        list(scan(path))


def test_a_bomb_in_a_wheel_is_bounded(tmp_path: Path) -> None:
    path = wheel(tmp_path / "a.whl", {"x.so": padded(bytes(20 << 20))})
    with pytest.raises(LimitExceeded, match="MiB of reading"):
        list(scan(path, limits=Limits(work=4 << 20)))


def test_no_file_stays_open(tmp_path: Path) -> None:
    path = wheel(tmp_path / "a.whl", MEMBERS)
    broken = tmp_path / "broken.so"
    broken.write_bytes(blob("plain.so")[:9000])
    before = len(list(Path("/proc/self/fd").iterdir()))
    list(scan(path))
    for place in (broken, tmp_path, tmp_path / "none"):
        with pytest.raises(CodeObjectError):
            inspect(place)
    next(scan(path))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_file_that_shrinks_meanwhile_is_an_error(tmp_path: Path) -> None:
    from strix_finetune.codeobject.limits import Ledger

    path = tmp_path / "x"
    path.write_bytes(bytes(100_000))
    with FileSource(str(path), Ledger(Limits())) as source:
        assert source.read(90_000, 10) == bytes(10)
        os.truncate(path, 10)
        with pytest.raises(Malformed, match="became shorter"):
            source.read(90_000, 10)
