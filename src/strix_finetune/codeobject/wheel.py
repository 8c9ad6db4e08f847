"""Members of a wheel or zip as sources: decompressed on the way, held nowhere, unpacked to no disk."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from .faults import CodeObjectError, LimitExceeded, Malformed, Unreadable
from .limits import MIB, Ledger
from .source import Reader, StreamSource

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


@contextmanager
def open_archive(path: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip file for reading; what is wrong with it is one Malformed."""
    try:
        with _CappedFile(io.FileIO(path)) as file, zipfile.ZipFile(file) as archive:
            yield archive
    except CodeObjectError as error:
        raise error.at(path) from None
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror or error}", path=path) from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, OverflowError) as error:
        raise Malformed(f"is no readable zip file: {error}", path=path) from None


def members(archive: zipfile.ZipFile) -> Iterator[zipfile.ZipInfo]:
    """The files in it that are long enough to be one of ours, in the order in which they are stored."""
    found = (item for item in archive.infolist() if not item.is_dir() and item.file_size >= 64)
    return iter(sorted(found, key=lambda item: item.header_offset))


class _Member:
    """A member that is read from its start; zipfile's many complaints become one kind."""

    def __init__(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
        with _complaints():
            self._file = archive.open(member)

    def read(self, size: int) -> bytes:
        with _complaints():
            return self._file.read(size)


@contextmanager
def _complaints() -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OverflowError, RuntimeError, OSError) as error:
        # RuntimeError: encrypted members, and NotImplementedError for a compression method of its own.
        raise Malformed(
            f"cannot be unpacked: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from None


class MemberSource(StreamSource):
    """One member; reading backwards decompresses it again from its start."""

    def __init__(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo, ledger: Ledger) -> None:
        def opener() -> Reader:
            return _Member(archive, member)

        super().__init__(opener, member.file_size, ledger, "the member")
