"""Wheels and source archives from a few bytes in memory, the same bytes each time."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.generator import Generator
from email.message import Message
from pathlib import Path

_DATE = (2026, 8, 25, 19, 4, 12)
_EPOCH = 1_787_684_652
Files = Mapping[str, bytes | str]


@dataclass(frozen=True, slots=True)
class Archive:
    """A file as an index offers it. `project` is the normalized name."""

    project: str
    version: str
    filename: str
    content: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def size(self) -> int:
        return len(self.content)

    def save(self, folder: Path) -> Path:
        """Write it to a folder, under its own name."""
        path = folder / self.filename
        path.write_bytes(self.content)
        return path


def wheel(
    name: str,
    version: str,
    files: Files,
    *,
    tag: str = "py3-none-linux_x86_64",
    requires: Sequence[str] = (),
    extras: Mapping[str, Sequence[str]] | None = None,
    scripts: Mapping[str, str] | None = None,
    points: Mapping[str, Mapping[str, str]] | None = None,
    headers: Mapping[str, str] | None = None,
    info: Files | None = None,
) -> Archive:
    """A wheel. `requires` are Requires-Dist lines without extras, `extras` those of each extra.

    `scripts`: console scripts; `points`: entry points of other groups; `headers`: more lines of METADATA; `info`: more
    files beside it. Files in bin/ folders and those that begin with #! are executable.
    """
    stem = f"{_escaped(name)}-{version}"
    folder = f"{stem}.dist-info"
    members = {path: _bytes(content) for path, content in files.items()}
    members |= {f"{folder}/{path}": _bytes(content) for path, content in (info or {}).items()}
    members[f"{folder}/METADATA"] = metadata(name, version, requires, extras, headers)
    pure = "true" if tag.endswith("-any") else "false"
    members[f"{folder}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: standin\nRoot-Is-Purelib: {pure}\nTag: {tag}\n\n".encode()
    )
    groups = {**({"console_scripts": scripts} if scripts else {}), **(points or {})}
    if groups:
        members[f"{folder}/entry_points.txt"] = "\n".join(
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
            for group, entries in groups.items()
        ).encode()
    record = "".join(f"{path},{_digest(content)},{len(content)}\n" for path, content in members.items())
    members[f"{folder}/RECORD"] = f"{record}{folder}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path, content in members.items():
            entry = zipfile.ZipInfo(path, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            program = "/bin/" in path or content.startswith(b"#!")
            entry.external_attr = (0o100755 if program else 0o100644) << 16
            archive.writestr(entry, content)
    return Archive(_normalized(name), version, f"{stem}-{tag}.whl", buffer.getvalue())


def sdist(
    name: str,
    version: str,
    files: Files,
    *,
    requires: Sequence[str] = (),
    extras: Mapping[str, Sequence[str]] | None = None,
    dynamic: Sequence[str] = (),
) -> Archive:
    """A source archive; `dynamic` names the fields that only building it can tell for certain."""
    folder = f"{_escaped(name)}-{version}"
    head = metadata(name, version, requires, extras, dynamic=dynamic)
    tarball = io.BytesIO()
    with tarfile.open(fileobj=tarball, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in {"PKG-INFO": head, **files}.items():
            entry = tarfile.TarInfo(f"{folder}/{path}")
            data = _bytes(content)
            entry.size, entry.mode, entry.mtime = len(data), 0o644, _EPOCH
            archive.addfile(entry, io.BytesIO(data))
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", mtime=_EPOCH) as packed:
        packed.write(tarball.getvalue())
    return Archive(_normalized(name), version, f"{folder}.tar.gz", buffer.getvalue())


def metadata(
    name: str,
    version: str,
    requires: Sequence[str] = (),
    extras: Mapping[str, Sequence[str]] | None = None,
    headers: Mapping[str, str] | None = None,
    dynamic: Sequence[str] = (),
) -> bytes:
    """Core metadata, version 2.4."""
    message = Message()
    message["Metadata-Version"] = "2.4"
    message["Name"] = name
    message["Version"] = version
    message["Summary"] = f"Stand-in for {name} in tests; it computes nothing"
    for key, value in (headers or {}).items():
        message[key] = value
    for word in dynamic:
        message["Dynamic"] = word
    for line in requires:
        message["Requires-Dist"] = line
    for extra, lines in (extras or {}).items():
        message["Provides-Extra"] = extra
        for line in lines:
            message["Requires-Dist"] = f'{line}; extra == "{extra}"'
    text = io.StringIO()
    Generator(text, mangle_from_=False, maxheaderlen=0).flatten(message)
    return text.getvalue().encode()


def _bytes(content: bytes | str) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _escaped(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
