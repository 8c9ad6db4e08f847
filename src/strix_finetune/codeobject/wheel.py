"""Members of a wheel or zip as sources: decompressed on the way, held nowhere, unpacked to no disk."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .faults import CodeObjectError, LimitExceeded, Malformed, Unreadable
from .limits import MIB, Ledger
from .source import Reader, StreamSource

if TYPE_CHECKING:
    import zipfile

MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
_DIRECTORY = 32 * MIB


class _CappedFile(io.BufferedReader):
    """zipfile reads the directory at once, however long the file says that it is."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = os.fstat(self.fileno()).st_size - self.tell()
        if size > _DIRECTORY:
            raise LimitExceeded(f"its directory takes more than {_DIRECTORY // MIB} MiB")
        return super().read(size)


def _complaints() -> tuple[type[Exception], ...]:
    """What zipfile and its decompressors raise on a damaged file, found by reading and by fuzzing them."""
    import lzma
    import struct
    import zipfile
    import zlib

    # RuntimeError: encrypted members; NotImplementedError, its child: methods and versions that it does not know.
    own = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError)
    return (*own, ValueError, LookupError, OverflowError, RuntimeError)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except CodeObjectError:
        raise
    except _complaints() as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise Malformed(f"{what}: {reason}") from None
    except OSError as error:
        raise Unreadable(f"{what}: {error.strerror or error}") from None


@contextmanager
def open_archive(path: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip file for reading; what is wrong with it is one CodeObjectError with its path."""
    import zipfile

    try:
        with _translated("is no readable zip file"):
            file = _CappedFile(io.FileIO(path))
            try:
                archive = zipfile.ZipFile(file)
            except BaseException:
                file.close()
                raise
    except CodeObjectError as error:
        raise error.at(path) from None
    with file, archive:
        yield archive


def members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The files in it that are long enough to be one of ours, in the order in which they are stored."""
    found = (item for item in archive.infolist() if item.filename and not item.is_dir() and item.file_size >= 64)
    return sorted(found, key=lambda item: item.header_offset)


class _Member:
    """A member that is read from its start; zipfile's many complaints become one kind."""

    def __init__(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
        with _translated("cannot be unpacked"):
            self._file = archive.open(member)

    def read(self, size: int) -> bytes:
        with _translated("cannot be unpacked"):
            return self._file.read(size)


class MemberSource(StreamSource):
    """One member; reading backwards decompresses it again from its start."""

    def __init__(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo, ledger: Ledger) -> None:
        def opener() -> Reader:
            return _Member(archive, member)

        super().__init__(opener, member.file_size, ledger, "the member")
