"""The table of kernels and firmware: its form, how kernels are told apart, and that the documentation shows it."""

from __future__ import annotations

import lzma
import re
import sqlite3
import struct
from datetime import date
from pathlib import Path

import pytest

from strix_finetune.codeobject.codec import zstd_module
from strix_finetune.doctor import docs, firmware, packages
from strix_finetune.doctor.host import Host
from strix_finetune.doctor.known import (
    fitting,
    kernel,
    kernel_entry,
    package_entry,
    release,
    table,
)
from tests.unit.doctor.hosts import GIB, TARGETS, Tree, mes

ROOT = Path(__file__).resolve().parents[3]
FILE = "lib/firmware/amdgpu/gc_11_5_1_mes_2.bin"


def test_entries_have_a_source_and_mean_something() -> None:
    known = table()
    for entry in (*known.kernels, *known.firmware):
        assert set(entry.targets) <= set(TARGETS)
        assert entry.link.startswith("https://")
        assert date.fromisoformat(entry.date)
        assert entry.verdict in ("ok", "warning", "blocks")
        assert not entry.says.endswith(".")
    for found in known.kernels:
        assert found.since or found.below
        assert found.flavour in ("mainline", "ubuntu", "ubuntu-oem")
        assert bool(found.cure) == (found.verdict != "ok")
        assert bool(found.codename) == (found.flavour != "mainline")
    for package in known.firmware:
        assert all(re.fullmatch(r"20\d{6}", day) for day in package.dates)
    assert all(name.count(" of a ") == 1 for name in known.sizes.peak_gb)


@pytest.mark.parametrize(
    ("name", "ubuntu", "codename", "verdict"),
    [
        ("6.18.4", False, "", "ok"),
        ("6.18.3", False, "", "warning"),
        ("6.18.9-200.fc43.x86_64", False, "", "ok"),
        ("6.18.0-rc6", False, "", "warning"),
        ("7.0.3-zen1-1-zen", False, "", "ok"),
        ("6.12.48+deb13-amd64", False, "trixie", "warning"),
        ("6.17.0-19-generic", True, "noble", "ok"),
        ("6.17.0-18-generic", True, "noble", "warning"),
        ("6.17.0-19-lowlatency", True, "noble", "ok"),
        ("7.0.0-10-generic", True, "noble", "ok"),
        ("7.0.0-22-generic", True, "resolute", "ok"),
        ("6.14.0-1018-oem", True, "noble", "ok"),
        ("6.14.0-1017-oem", True, "noble", "warning"),
        ("6.18.35-061835-generic", True, "noble", "ok"),
        ("6.17.9-061709-generic", True, "noble", "warning"),
        ("6.17.0-22-generic", True, "questing", None),
        ("6.14.0-1018-aws", True, "noble", None),
        ("6.12.0-124.8.1.el10_1.x86_64", False, "", None),
        ("6.17.2-1-pve", False, "trixie", None),
        ("linux", False, "", None),
        ("", False, "", None),
    ],
)
def test_kernels(name: str, ubuntu: bool, codename: str, verdict: str | None) -> None:
    entry = kernel_entry(table().kernels, "gfx1151", kernel(name, ubuntu=ubuntu), codename)
    assert (entry.verdict if entry else None) == verdict
    assert kernel_entry(table().kernels, "gfx1100", kernel(name, ubuntu=ubuntu), codename) is None


def test_releases() -> None:
    assert release("6.17.0-19") == (6, 17, 0, 19)
    assert kernel("6.18", ubuntu=False).release == (6, 18, 0)


def test_what_fits() -> None:
    sizes = table().sizes
    assert fitting(sizes, 62 * GIB) == ["a full fine-tune of a 4B model", "LoRA of a 4B model", "QLoRA of a 12B model"]
    assert fitting(sizes, 12 * GIB) == []
    # 13 GB are less than 13 GiB
    assert fitting(sizes, 13 * 10**9) == ["QLoRA of a 4B model"]


@pytest.mark.parametrize(
    ("package", "version", "verdict"),
    [
        ("amd-gpu-firmware", "20251125-1.fc43", "blocks"),
        ("linux-firmware-amdgpu", "1:20260110-1", "ok"),
        ("firmware-amd-graphics", "20260916-1", None),
        # Ubuntu's is a base with patches on top
        ("linux-firmware", "20240318.git3b128b60-0ubuntu2.21", None),
        ("other", "20251125-1", None),
    ],
)
def test_firmware_packages(package: str, version: str, verdict: str | None) -> None:
    entry = package_entry(table().firmware, "gfx1151", package, version)
    assert (entry.verdict if entry else None) == verdict


def _zst(data: bytes) -> bytes:
    return bytes(zstd_module().compress(data))


@pytest.mark.parametrize(("ending", "pack"), [("", bytes), (".xz", lzma.compress), (".zst", _zst)])
def test_firmware_files(ending: str, pack: type[bytes], tmp_path: Path) -> None:
    Tree(tmp_path).put(FILE + ending, pack(mes(0x83) + bytes(200_000)))
    assert firmware.find(Host(tmp_path), "gfx1151") == firmware.Firmware(0x83, f"/{FILE}{ending}", loaded=False)
    (tmp_path / (FILE + ending)).write_bytes(pack(mes(0x83))[:20])
    assert firmware.find(Host(tmp_path), "gfx1151") is None


def test_the_file_that_the_kernel_would_take(tmp_path: Path) -> None:
    """A plain file comes before every compressed one, updates before the rest, the kernel's word before all."""
    tree = Tree(tmp_path).put("proc/sys/kernel/osrelease", "6.18.9\n")
    steps = [
        (f"{FILE}.xz", lzma.compress(mes(0x11))),
        (f"{FILE}.zst", _zst(mes(0x12))),
        ("lib/firmware/updates/amdgpu/gc_11_5_1_mes_2.bin.zst", _zst(mes(0x13))),
        (FILE, mes(0x14)),
        ("lib/firmware/6.18.9/amdgpu/gc_11_5_1_mes_2.bin", mes(0x15)),
        ("lib/firmware/updates/amdgpu/gc_11_5_1_mes_2.bin", mes(0x16)),
        ("lib/firmware/updates/6.18.9/amdgpu/gc_11_5_1_mes_2.bin", mes(0x17)),
        ("srv/firmware/amdgpu/gc_11_5_1_mes_2.bin", mes(0x18)),
    ]
    tree.put("sys/module/firmware_class/parameters/path", "/srv/firmware\n")
    for number, (path, content) in enumerate(steps):
        tree.put(path, content)
        found = firmware.find(Host(tmp_path), "gfx1151")
        assert found is not None
        assert (found.version, found.place) == (0x11 + number, f"/{path}")
    lines = (
        "MES_KIQ feature version: 6, firmware version: 0x0000006f",
        "MES feature version: 1, firmware version: 0x80",
    )
    info = "\n".join(lines) + "\n"
    tree.put("sys/kernel/debug/dri/128/amdgpu_firmware_info", info)
    found = firmware.find(Host(tmp_path), "gfx1151")
    assert found is not None
    assert (found.version, found.loaded) == (0x80, True)
    assert firmware.find(Host(Tree(tmp_path / "x").put(FILE, mes(0x11)).root), "gfx942") is None


def _header(**strings: str) -> bytes:
    """A header of rpm: an index of (tag, type, offset, count), then the strings."""
    tags = {"name": 1000, "version": 1001, "release": 1002}
    index, data = b"", b""
    for key, value in strings.items():
        index += struct.pack(">IIII", tags[key], 6, len(data), 1)
        data += value.encode() + b"\0"
    return struct.pack(">II", len(strings), len(data)) + index + data


def rpmdb(path: Path, headers: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE Packages (hnum INTEGER PRIMARY KEY, blob BLOB NOT NULL)")
        database.execute("CREATE TABLE Name (key TEXT NOT NULL, hnum INTEGER NOT NULL, idxnum INTEGER NOT NULL)")
        for number, (name, header) in enumerate(headers.items(), start=1):
            database.execute("INSERT INTO Packages VALUES (?, ?)", (number, header))
            database.execute("INSERT INTO Name VALUES (?, ?, 0)", (name, number))
    database.close()


def test_packages_of_rpm(tmp_path: Path) -> None:
    good = _header(name="amd-gpu-firmware", version="20260110", release="1.fc43")
    headers = {"amd-gpu-firmware": good, "cut": good[:20], "odd": b"\xff" * 40, "none": _header(name="none")}
    path = tmp_path / "usr/lib/sysimage/rpm/rpmdb.sqlite"
    rpmdb(path, headers)
    before = sorted(path.parent.iterdir())
    host = Host(tmp_path)
    assert packages.version(host, "absent", "amd-gpu-firmware") == ("amd-gpu-firmware", "20260110-1.fc43")
    assert packages.version(host, "cut", "odd", "none", "absent") is None
    assert sorted(path.parent.iterdir()) == before
    path.write_bytes(b"no database")
    assert packages.version(Host(tmp_path), "amd-gpu-firmware") is None


def test_packages_of_dpkg(tmp_path: Path) -> None:
    status = (
        "Package: first\nStatus: install ok installed\nVersion: 1-1\nDescription: a\n Version: 9\n\n"
        "Package: left\nStatus: deinstall ok config-files\nVersion: 2-1\n\n"
        "Package: half\nStatus: install ok half-installed\nVersion: 2-1\n\n"
        "Package: unpacked\nStatus: install ok unpacked\nVersion: 2-1\n\n"
        "Package: last\nStatus: install ok installed\nVersion: 3-1\n"
    )
    host = Host(Tree(tmp_path).put("var/lib/dpkg/status", status).root)
    assert packages.version(host, "left", "half", "unpacked", "last") == ("last", "3-1")
    assert packages.version(host, "first") == ("first", "1-1")
    assert packages.version(host, "left", "irst") is None


def test_packages_of_pacman(tmp_path: Path) -> None:
    host = Host(Tree(tmp_path).put("var/lib/pacman/local/linux-firmware-amdgpu-1:20260110-1/desc").root)
    assert packages.version(host, "linux-firmware", "linux-firmware-amdgpu") == (
        "linux-firmware-amdgpu",
        "1:20260110-1",
    )


def test_the_documentation_says_what_the_code_says() -> None:
    for name, parts in docs.parts().items():
        text = (ROOT / "docs" / name).read_text("utf-8")
        assert docs.with_parts(text, parts) == text, f"run python -m strix_finetune.doctor.docs {ROOT / 'docs'}"
        for part in parts.values():
            assert part in text


def test_a_place_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="one place for 'kernels'"):
        docs.with_parts("nothing", {"kernels": "x"})
