"""What apt says of an installation, and what is installed after it."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from strix_finetune.errors import LockError, WorkError
from strix_finetune.vendor.solve import Deb, Installed, Solver, read_root
from strix_finetune.vendor.steps import Install

STATUS = """\
Package: bash
Status: install ok installed
Version: 5.3-1
Architecture: amd64
Description: a shell
 with two lines

Package: old
Status: install ok installed
Version: 1
Architecture: all
"""
SHOWN = """\
Package: tool
Version: 2:1.0-1
Architecture: amd64
Depends: libtool1
Filename: pool/t/tool_1.0-1_amd64.deb
Size: 10
SHA256: {a}
Description: a tool

Package: libtool1
Version: 1.0-1
Architecture: all
Filename: pool/t/libtool1_1.0-1_all.deb
Size: 20
SHA256: {b}

Package: libtool1
Version: 1.0-1
Architecture: all
Filename: pool/other/libtool1_1.0-1_all.deb
Size: 20
SHA256: {b}
""".format(a="a" * 64, b="b" * 64)
SIMULATED = """\
NOTE: This is only a simulation!
Remv old [1]
Inst libtool1 (1.0-1 Debian:unstable, Debian:experimental [all])
Inst tool [2:0.9-1] (2:1.0-1 Debian:unstable [amd64]) []
Conf libtool1 (1.0-1 Debian:unstable [all])
"""


class State:
    """Answers as apt did."""

    def __init__(self, code: int = 0, said: str = "") -> None:
        self.code, self.said = code, said
        self.asked: list[tuple[str, ...]] = []
        self.status = ""

    def run(self, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        self.asked.append(command)
        if command[0] == "apt-cache":
            return subprocess.CompletedProcess(command, 0, SHOWN, "")
        [option] = [word for word in command if word.startswith("Dir::State::status=")]
        self.status = Path(option.partition("=")[2]).read_text()
        return subprocess.CompletedProcess(command, self.code, SIMULATED, self.said)


def solver(state: Any, tmp_path: Path) -> Solver:
    return Solver(state, ("/image/apt-get",), tmp_path)


def root(tmp_path: Path, files: dict[str, str | tuple[str]]) -> Path:
    """A tar with these files; a tuple is a link."""
    path = tmp_path / "root.tar"
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                info.type, info.linkname = tarfile.SYMTYPE, content[0]
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content.encode()))
    return path


LIBRARIES = "./usr/lib/x86_64-linux-gnu"


def test_a_root_file_system_brings_its_own_apt(tmp_path: Path) -> None:
    tar = root(
        tmp_path,
        {
            "./var/lib/dpkg/status": STATUS,
            "./var/lib/apt/extended_states": "Package: old\n",
            "./usr/bin/apt-get": "program",
            "./usr/bin/dpkg": "left out",
            f"{LIBRARIES}/ld-linux-x86-64.so.2": "loader",
            f"{LIBRARIES}/libapt.so.7": ("libapt.so.7.0",),
            f"{LIBRARIES}/libapt.so.7.0": "library",
            f"{LIBRARIES}/evil.so": ("../../../../etc/passwd",),
            f"{LIBRARIES}/deep/x.so": "left out",
        },
    )
    installed, command = read_root(tar, tmp_path / "work")
    assert installed.versions == [("bash", "5.3-1", "amd64"), ("old", "1", "all")]
    assert installed.extended == "Package: old\n"
    libraries = tmp_path / "work/usr/lib/x86_64-linux-gnu"
    assert command == (
        f"{libraries}/ld-linux-x86-64.so.2",
        "--library-path",
        str(libraries),
        str(tmp_path / "work" / "usr/bin/apt-get"),
    )
    assert sorted(path.name for path in libraries.iterdir()) == ["ld-linux-x86-64.so.2", "libapt.so.7", "libapt.so.7.0"]
    assert (libraries / "libapt.so.7").read_text() == "library"


def test_without_apt_in_it_the_hosts_own_is_asked(tmp_path: Path) -> None:
    _, command = read_root(root(tmp_path, {"var/lib/dpkg/status": STATUS}), tmp_path / "work")
    assert command == ("apt-get",)


def test_what_a_step_installs(tmp_path: Path) -> None:
    state = State()
    before = read_root(root(tmp_path, {"var/lib/dpkg/status": STATUS}), tmp_path / "work")[0]
    step = Install(("tool=2:1.0-1",), ("Package: stub\nVersion: 3\nArchitecture: all\n",))
    after, debs = solver(state, tmp_path).install(before, step)
    assert state.asked[0][0] == "/image/apt-get"
    assert state.asked[0][-3:] == ("--no-install-recommends", "install", "tool=2:1.0-1")
    assert state.asked[1] == ("apt-cache", "show", "libtool1=1.0-1", "tool=2:1.0-1")
    # the step's own package is there when apt is asked
    assert "Status: install ok installed\nPackage: stub\nVersion: 3\n" in state.status
    assert "Description: a shell\n with two lines\n\nPackage: old\n" in state.status
    assert debs == (
        Deb("libtool1", "1.0-1", "all", "pool/t/libtool1_1.0-1_all.deb", 20, "b" * 64),
        Deb("tool", "2:1.0-1", "amd64", "pool/t/tool_1.0-1_amd64.deb", 10, "a" * 64),
    )
    assert [name for name, _, _ in after.versions] == ["bash", "stub", "libtool1", "tool"]
    assert "Status: install ok installed\nPackage: tool\nVersion: 2:1.0-1\n" in after.status()
    assert "Filename" not in after.status()
    assert after.extended == "Package: libtool1\nArchitecture: amd64\nAuto-Installed: 1\n\n"


def test_what_the_archive_no_longer_has(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="the archive no longer serves gone 1; run 'strix-finetune lock'"):
        solver(State(), tmp_path).debs([("tool", "2:1.0-1", "amd64"), ("gone", "1", "all")])
    state = State(100, "E: Version '2:1.0-1' for 'tool' was not found\n")
    with pytest.raises(LockError, match=r"the archive no longer serves tool 2:1\.0-1"):
        solver(state, tmp_path).install(Installed(), Install(("tool=2:1.0-1",)))


def test_no_way_to_install(tmp_path: Path) -> None:
    state = State(100, "Reading…\nE: Unable to satisfy dependencies. Reached two conflicting decisions.\n")
    with pytest.raises(WorkError, match=r"apt finds no way to install a=1 b=2 c=3 … \(Unable to satisfy") as caught:
        solver(state, tmp_path).install(Installed(), Install(("a=1", "b=2", "c=3", "d=4")))
    assert "\n" not in str(caught.value)
