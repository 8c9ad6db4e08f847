"""Write a layer: a tar with nothing in it that follows from the machine, compressed in one way and at one level.

gzip by libdeflate, whose version is pinned (zlib is another program on every distribution, and gives other bytes), in
members of 4 MiB: any reader of gzip takes them as one stream, and memory stays small.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Protocol

from strix_finetune.oci.descriptor import LAYER_GZIP, LAYER_ZSTD, Descriptor
from strix_finetune.oci.normal import FIXED_TIME
from strix_finetune.oci.split import Part
from strix_finetune.oci.tree import NOWHERE, WHITEOUT, Entry, Kind

Compression = Literal["gzip", "zstd"]
MEDIA_TYPES = {"gzip": LAYER_GZIP, "zstd": LAYER_ZSTD}
GZIP_LEVEL = 6
ZSTD_LEVEL = 9
_MEMBER = 4 * 1024 * 1024
_BLOCK = 1024 * 1024
_TYPES = {
    Kind.FILE: tarfile.REGTYPE,
    Kind.FOLDER: tarfile.DIRTYPE,
    Kind.LINK: tarfile.SYMTYPE,
    Kind.CHARACTER: tarfile.CHRTYPE,
    Kind.BLOCK: tarfile.BLKTYPE,
    Kind.FIFO: tarfile.FIFOTYPE,
}


class Unread(Exception):
    """The content of an entry was not read from the image."""


Read = Callable[[Entry], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Written:
    """A layer on disk. `diff_id`: "sha256:…" of the plain tar, `size`: of that in bytes."""

    descriptor: Descriptor
    diff_id: str
    size: int


class _Compressor(Protocol):
    def add(self, data: bytes) -> bytes: ...

    def end(self) -> bytes: ...


class _Gzip:
    def __init__(self) -> None:
        self._waiting = bytearray()

    def add(self, data: bytes) -> bytes:
        self._waiting += data
        made = b""
        while len(self._waiting) >= _MEMBER:
            made += self._member(bytes(self._waiting[:_MEMBER]))
            del self._waiting[:_MEMBER]
        return made

    def end(self) -> bytes:
        return self._member(bytes(self._waiting)) if self._waiting else b""

    @staticmethod
    def _member(data: bytes) -> bytes:
        import deflate

        return bytes(deflate.gzip_compress(data, GZIP_LEVEL))


class _Zstd:
    def __init__(self) -> None:
        from strix_finetune.codeobject.codec import zstd_module

        self._state = zstd_module().ZstdCompressor(level=ZSTD_LEVEL)

    def add(self, data: bytes) -> bytes:
        return bytes(self._state.compress(data))

    def end(self) -> bytes:
        return bytes(self._state.flush())


def tar(part: Part, read: Read) -> Iterator[bytes]:
    """The plain tar of a part: sorted, numbers instead of names of users, hard links to the first name of a file."""
    first: dict[tuple[int, str], str] = {}
    rows: list[tuple[str, Entry | None]] = [(entry.path, entry) for entry in part.entries]
    rows += [(_whiteout(path), None) for path in part.gone]
    for path, entry in sorted(rows, key=lambda row: row[0]):
        info = tarfile.TarInfo(path)
        info.mtime, info.mode = FIXED_TIME, 0
        if entry is None:
            yield _header(info)
            continue
        info.mtime, info.mode, info.type = entry.mtime, entry.mode, _TYPES[entry.kind]
        info.uid, info.gid, info.linkname = entry.uid, entry.gid, entry.target
        info.devmajor, info.devminor = entry.device
        info.pax_headers = {f"SCHILY.xattr.{name}": value for name, value in entry.xattrs}
        if entry.kind is Kind.LINK:
            info.mode = 0o777
        known = first.setdefault(entry.inode, path) if entry.kind is Kind.FILE else path
        if known != path:
            info.type, info.linkname, info.pax_headers = tarfile.LNKTYPE, known, {}
            yield _header(info)
            continue
        info.size = entry.size if entry.kind is Kind.FILE else 0
        yield _header(info)
        if entry.kind is Kind.FILE and entry.size:
            yield from read(entry)
            if rest := entry.size % tarfile.BLOCKSIZE:
                yield bytes(tarfile.BLOCKSIZE - rest)
    yield bytes(2 * tarfile.BLOCKSIZE)


def write(part: Part, read: Read, folder: Path, compression: Compression = "gzip") -> Written:
    """Write a part into `folder` under the hex digits of its digest. A failure leaves nothing behind."""
    temporary = folder / f".{part.name}.{os.getpid()}.part"
    plain, packed = hashlib.sha256(), hashlib.sha256()
    size = stored = 0
    compressor: _Compressor = _Gzip() if compression == "gzip" else _Zstd()
    try:
        with temporary.open("wb") as stream:
            for block in tar(part, read):
                plain.update(block)
                size += len(block)
                stored += _put(stream, packed, compressor.add(block))
            stored += _put(stream, packed, compressor.end())
        temporary.replace(folder / packed.hexdigest())
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    media_type = MEDIA_TYPES[compression]
    descriptor = Descriptor(media_type, f"sha256:{packed.hexdigest()}", stored)
    return Written(descriptor, f"sha256:{plain.hexdigest()}", size)


def reader(spools: Callable[[int], IO[bytes]]) -> Read:
    """Reads the content of an entry out of the tar that it came in; `spools(n)` is the n-th, open for reading."""

    def read(entry: Entry) -> Iterator[bytes]:
        if entry.where == NOWHERE:
            raise Unread(entry.path)
        number, offset = entry.where
        stream = spools(number)
        stream.seek(offset)
        left = entry.size
        while left:
            block = stream.read(min(left, _BLOCK))
            if not block:
                raise OSError(f"the copy of a layer ends within {entry.path}")
            left -= len(block)
            yield block

    return read


def _put(stream: IO[bytes], digest: hashlib._Hash, data: bytes) -> int:
    if data:
        digest.update(data)
        stream.write(data)
    return len(data)


def _whiteout(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{WHITEOUT}{name}"


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
