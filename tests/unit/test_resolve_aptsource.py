"""A source file by apt: what its index says, and one sentence for everything that can be wrong.

A stand-in for the archive answers as apt does; the real one is asked in the engine tests.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from strix_finetune.errors import FetchFailed, InputError, StrixError
from strix_finetune.netconf import NetSettings
from strix_finetune.resolve import aptsource
from strix_finetune.resolve.aptsource import SourceFile, fetch_source, parse_sources
from strix_finetune.schema import Apt

CONTENT = b"the source of rccl\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FILE = "rccl_5.4.3.orig.tar.gz"
URL = f"apt-source:rccl=5.4.3-3/{FILE}"
CORRECT = "correct the archive's url"
SHOWSRC = f"""\
Package: rccl
Binary: librccl1, librccl-dev
Version: 5.4.3-3
Files:
 71e581091c9957f1f91b87dfb5d886f9 2645 rccl_5.4.3-3.dsc
 b27225e1b03eba441cbaacb6a85ac1e8 {len(CONTENT)} {FILE}
Checksums-Sha256:
 {"d" * 64} 2645 rccl_5.4.3-3.dsc
 {SHA256} {len(CONTENT)} {FILE}
 {"e" * 64} 8860 rccl_5.4.3-3.debian.tar.xz
Homepage: https://example.org/rccl
Directory: pool/main/r/rccl

Package: rccl
Version: 7.2.4-1~exp3
Checksums-Sha256:
 {"f" * 64} 2475001 rccl_7.2.4.orig.tar.gz

Package: incomplete
Version: 1

"""


class Archive:
    """Stands for `resolve.apt.State`."""

    mirror = "http://mirror.example/debian"

    def __init__(self) -> None:
        self.content: bytes | None = CONTENT
        self.stderr = ""
        self.commands: list[tuple[str, ...]] = []

    def update(self) -> None:
        self.commands.append(("update",))

    def run(self, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if command[:2] == ("apt-cache", "showsrc"):
            return subprocess.CompletedProcess(command, 0, SHOWSRC if command[-1] == "rccl" else "", "")
        assert cwd is not None
        if self.content is not None:
            (cwd / FILE).write_bytes(self.content)
        return subprocess.CompletedProcess(command, 0 if self.content else 100, "", self.stderr)


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> Archive:
    made = Archive()

    class Host:
        def __init__(self, settings: NetSettings, cache: Path) -> None:
            pass

        available = staticmethod(lambda: True)

        @contextlib.contextmanager
        def state(self, apt: Apt, *, sources: bool = False) -> Iterator[Archive]:
            assert sources
            yield made

    monkeypatch.setattr(aptsource, "AptArchive", Host)
    return made


def fetch(folder: Path, url: str = URL, sha256: str = SHA256, size: int = len(CONTENT)) -> Path:
    return fetch_source(url, sha256, size, folder / "archives", NetSettings(), folder, Apt(suite="sid"))


def test_every_file_of_every_version_is_read() -> None:
    found = parse_sources(SHOWSRC)
    assert found.keys() == {"5.4.3-3", "7.2.4-1~exp3"}
    assert found["5.4.3-3"] == {
        "rccl_5.4.3-3.dsc": SourceFile("d" * 64, 2645),
        FILE: SourceFile(SHA256, len(CONTENT)),
        "rccl_5.4.3-3.debian.tar.xz": SourceFile("e" * 64, 8860),
    }
    assert parse_sources("") == {}


def test_it_is_fetched_once_and_checked_when_it_is_there(archive: Archive, tmp_path: Path) -> None:
    path = fetch(tmp_path)
    assert (path.name, path.read_bytes()) == (SHA256, CONTENT)
    assert archive.commands[-1][-2:] == ("--tar-only", "rccl=5.4.3-3")
    archive.commands.clear()
    assert fetch(tmp_path) == path
    assert archive.commands == []
    path.write_bytes(b"x" * len(CONTENT))
    assert fetch(tmp_path).read_bytes() == CONTENT
    assert [child.name for child in (tmp_path / "archives").iterdir()] == [SHA256]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        (
            "apt-source:rccl=5.4.4-1/rccl_5.4.4.orig.tar.gz",
            f"Debian's archive has no source package rccl 5.4.4-1 (it has 5.4.3-3, 7.2.4-1~exp3); {CORRECT}",
        ),
        (
            "apt-source:rcll=5.4.3-3/rccl_5.4.3.orig.tar.gz",
            f"Debian's archive has no source package rcll 5.4.3-3; {CORRECT}",
        ),
        (
            "apt-source:rccl=7.2.4-1~exp3/rccl_7.2.4.tar.gz",
            "the source package rccl 7.2.4-1~exp3 has no file rccl_7.2.4.tar.gz; it has rccl_7.2.4.orig.tar.gz",
        ),
    ],
)
def test_a_source_that_the_archive_does_not_have(archive: Archive, tmp_path: Path, url: str, sentence: str) -> None:
    with pytest.raises(FetchFailed) as caught:
        fetch(tmp_path, url)
    assert str(caught.value) == sentence
    assert list((tmp_path / "archives").iterdir()) == []


@pytest.mark.parametrize("url", ["apt-source:rccl", "apt-source:rccl=1", "apt-source:rccl=1/../x", "apt-source:R=1/f"])
def test_what_is_no_source_file(archive: Archive, tmp_path: Path, url: str) -> None:
    with pytest.raises(InputError, match="write it as apt-source:PACKAGE=VERSION/FILE"):
        fetch(tmp_path, url)


def test_a_hash_that_changed_stops_before_anything_is_fetched(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(FetchFailed) as caught:
        fetch(tmp_path, sha256="a" * 64)
    assert str(caught.value) == (
        f"{FILE} is not the file that the lock names: its sha256 is {SHA256}, not {'a' * 64};"
        " find out why before you trust the new file"
    )
    with pytest.raises(FetchFailed, match=f"its size is {len(CONTENT)} bytes, not 5;"):
        fetch(tmp_path, size=5)
    assert not any(command[0] == "apt-get" for command in archive.commands)


def test_what_came_is_not_believed(archive: Archive, tmp_path: Path) -> None:
    archive.content = CONTENT.upper()
    with pytest.raises(FetchFailed, match="is not the file that the lock names: its sha256 is"):
        fetch(tmp_path)
    assert list((tmp_path / "archives").iterdir()) == []


TRUST = "find out why before you trust the new file"
NETWORK = "check the network and the proxy settings"


@pytest.mark.parametrize(
    ("stderr", "sentence"),
    [
        (
            f"E: Failed to fetch http://u:p@mirror.example/{FILE}  404  Not Found [IP: 192.0.2.1 80]",
            f"http://mirror.example/debian does not serve {FILE}, although its index lists it; name another mirror",
        ),
        (
            "E: Failed to fetch http://mirror.example/x  Hash Sum mismatch",
            f"http://mirror.example/debian serves another {FILE} than its signed index lists; {TRUST}",
        ),
        (
            "W: Could not connect to mirror.example:80. (111)",
            f"{FILE} could not be downloaded (Could not connect to mirror.example:80. (111)); {NETWORK}",
        ),
        (
            "E: http://u:secret@mirror.example is odd.",
            f"{FILE} could not be downloaded (http://***@mirror.example is odd); {NETWORK}",
        ),
        ("", f"{FILE} could not be downloaded (apt-get ended with 100); {NETWORK}"),
        (
            "E: Write error - write (28: No space left on device)",
            f"the disk is full, {FILE} does not fit; make room in",
        ),
    ],
)
def test_apts_complaints_in_one_sentence(archive: Archive, tmp_path: Path, stderr: str, sentence: str) -> None:
    archive.content, archive.stderr = None, stderr
    with pytest.raises(StrixError) as caught:
        fetch(tmp_path)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "archives").iterdir()) == []
