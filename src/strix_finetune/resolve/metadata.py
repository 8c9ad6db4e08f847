"""What a distribution says of itself: its name, its version, what it needs. Read without downloading a wheel whole.

In this order: the METADATA file that the index offers beside it (PEP 658), the wheel's own by a few requests for
parts of the file, or the file itself where the server sends no parts.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from strix_finetune.errors import FetchFailed
from strix_finetune.resolve.browser import Browser, Probe
from strix_finetune.resolve.distfiles import File

# the largest METADATA that is known has 0.2 MB
_LARGEST = 4 << 20
_WINDOW = 64 << 10


@dataclass(frozen=True, slots=True)
class Metadata:
    """`extras`: normalized names. `empty`: the wheel installs nothing and needs nothing."""

    requires: tuple[Requirement, ...] = ()
    extras: frozenset[str] = frozenset()
    empty: bool = False


def read(file: File, browser: Browser, ask: Callable[[], Probe], download: Callable[[], Path]) -> Metadata:
    """The metadata of a file. `ask` brings what the server says of it, `download` the file where all of it is needed.

    Raises FetchFailed where it cannot be read or belongs to another file.
    """
    if not file.is_wheel:
        with download().open("rb") as stream:
            return _source(stream, file)
    beside = _beside(file, browser)
    if beside is not None and beside.requires:
        return beside
    # what needs nothing may be a placeholder: only the list of its files tells
    probe = ask()
    if probe.parts and probe.size:
        return _wheel(RemoteFile(browser, probe), file)
    with download().open("rb") as stream:
        return _wheel(stream, file)


def _beside(file: File, browser: Browser) -> Metadata | None:
    if not file.link.metadata:
        return None
    page = browser.page(f"{file.link.url}.metadata", absent=(404, 410), limit=_LARGEST)
    if page is None:
        # said to be there and is not: the wheel has it as well
        return None
    found = hashlib.sha256(page.body).hexdigest()
    if file.link.metadata_sha256 and found != file.link.metadata_sha256:
        raise FetchFailed(
            f"the metadata beside {file.link.file} has the sha256 {found}, and the index says"
            f" {file.link.metadata_sha256}",
            cure="find out why before you trust the index",
        )
    return parse(page.body, file)


def parse(text: bytes, file: File, *, empty: bool = False, more: bytes = b"") -> Metadata:
    """Read METADATA or PKG-INFO. `more`: requires.txt of an old source distribution, for what PKG-INFO lacks."""
    raw, _ = parse_email(text)
    name, version = raw.get("name", ""), raw.get("version", "")
    try:
        right = canonicalize_name(name) == file.project and Version(version) == file.version
    except InvalidVersion:
        right = False
    if not right:
        raise FetchFailed(
            f"{file.link.file} calls itself '{name} {version}'"[:300], cure="take another version, this file is wrong"
        )
    asked, extras = raw.get("requires_dist", []), raw.get("provides_extra", [])
    if not asked and more:
        asked, extras = _requires_txt(more.decode("utf-8", "replace"))
    requires = []
    for line in asked:
        try:
            requires.append(Requirement(line))
        except InvalidRequirement:
            raise FetchFailed(
                f"{file.link.file} needs '{line[:200]}', which is no requirement", cure="take another version"
            ) from None
    return Metadata(tuple(requires), frozenset(canonicalize_name(extra) for extra in extras), empty and not requires)


def _wheel(stream: IO[bytes] | RemoteFile, file: File) -> Metadata:
    try:
        with zipfile.ZipFile(cast(IO[bytes], stream)) as archive:
            names = archive.namelist()
            inner = [name for name in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
            own = [name for name in inner if _project(name) == file.project]
            if len(own) != 1 or archive.getinfo(own[0]).file_size > _LARGEST:
                raise _unreadable(file, "it has no METADATA of its own")
            top = own[0].rpartition("/")[0] + "/"
            empty = all(name.startswith(top) for name in names)
            return parse(archive.read(own[0]), file, empty=empty)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise _unreadable(file, str(error).rstrip(".") or type(error).__name__) from None


def _project(name: str) -> str:
    """The project in "a_project-1.0.dist-info/METADATA", normalized."""
    return canonicalize_name(name.removesuffix(".dist-info/METADATA").rpartition("-")[0])


def _source(stream: IO[bytes], file: File) -> Metadata:
    try:
        with tarfile.open(fileobj=stream, mode="r:*") as archive:
            found = {
                member.name: member
                for member in archive
                if member.isfile()
                and member.size <= _LARGEST
                and re.fullmatch(r"[^/]+/PKG-INFO|[^/]+/(?:[^/]+/)?[^/]+\.egg-info/requires\.txt", member.name)
            }
            texts = {name.rpartition("/")[2]: _member(archive, member) for name, member in sorted(found.items())}
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise _unreadable(file, str(error).rstrip(".") or type(error).__name__) from None
    if "PKG-INFO" not in texts:
        raise _unreadable(file, "it has no PKG-INFO")
    return parse(texts["PKG-INFO"], file, more=texts.get("requires.txt", b""))


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    return stream.read() if stream else b""


def _requires_txt(text: str) -> tuple[list[str], list[str]]:
    """setuptools' own list of requirements: sections "[extra]", "[:marker]" and "[extra:marker]"."""
    asked: list[str] = []
    extras: list[str] = []
    extra = marker = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            extra, _, marker = line[1:-1].partition(":")
            extras += [extra] if extra and extra not in extras else []
        elif line and not line.startswith("#"):
            conditions = [f"({marker})"] if marker else []
            conditions += [f'extra == "{extra}"'] if extra else []
            asked.append(line + (f" ; {' and '.join(conditions)}" if conditions else ""))
    return asked, extras


def _unreadable(file: File, reason: str) -> FetchFailed:
    return FetchFailed(
        f"{file.link.file} cannot be read ({reason})", cure="take another version, or try again when it is replaced"
    )


class RemoteFile(io.RawIOBase):
    """A file on a server, read by requests for parts; small reads near each other share one request."""

    def __init__(self, browser: Browser, probe: Probe) -> None:
        self._browser, self._probe = browser, probe
        self._at = self._start = 0
        self._held = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._probe.size}[whence]
        if base + offset < 0:
            raise OSError("before the beginning")
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._probe.size if size < 0 else min(self._at + size, self._probe.size)
        if self._at >= end:
            return b""
        if self._at < self._start or end > self._start + len(self._held):
            # a zip is read from its end, so the last window begins earlier
            first = min(self._at, max(0, self._probe.size - _WINDOW))
            last = min(max(end, first + _WINDOW), self._probe.size) - 1
            self._held = self._browser.part(self._probe.url, first, last, self._probe.tag)
            self._start = first
        found = self._held[self._at - self._start : end - self._start]
        self._at = end
        return found

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)
