"""Bytes at an offset, wherever they come from: a file, a part of something, or a decompressor.

Files are read with pread and not mapped: a mapped file that shrinks meanwhile kills the process
with SIGBUS, and mapped pages count as the process's memory.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from .faults import Malformed, Unreadable
from .limits import MIB, Ledger

CHUNK = MIB
RETAINED = MIB


class Source(Protocol):
    """Random access to `size` bytes; `read` gives exactly what was asked for or raises Malformed."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes: ...


class Reader(Protocol):
    """A stream that is read from its start: at most `size` bytes, empty at the end."""

    def read(self, size: int) -> bytes: ...


def check_range(offset: int, size: int, whole: int, what: str = "it") -> None:
    """Refuse a range that is not inside `whole` bytes."""
    if offset < 0 or size < 0 or offset + size > whole:
        raise Malformed(f"{what} is cut off: bytes {offset} to {offset + size} are named, {whole} are there")


class FileSource:
    """A regular file, read where it is asked for."""

    def __init__(self, path: str, ledger: Ledger) -> None:
        try:
            # A named pipe must not hang the reader: open without waiting, then look at what it is.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise Unreadable(f"cannot be read: {reason}", path=path) from None
        status = os.fstat(self._fd)
        self.size = status.st_size
        self._ledger = ledger
        if not stat.S_ISREG(status.st_mode):
            os.close(self._fd)
            raise Unreadable("is not a regular file", path=path)

    def read(self, offset: int, size: int) -> bytes:
        check_range(offset, size, self.size, "the file")
        self._ledger.spend(size)
        parts = []
        while size:
            try:
                part = os.pread(self._fd, size, offset)
            except OSError as error:
                raise Unreadable(f"cannot be read: {error.strerror}") from None
            if not part:
                raise Malformed("the file became shorter while it was read")
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class Part:
    """A range of another source, with offsets of its own."""

    whole: Source
    offset: int
    size: int
    what: str = "it"

    def read(self, offset: int, size: int) -> bytes:
        check_range(offset, size, self.size, self.what)
        return self.whole.read(self.offset + offset, size)


class StreamSource:
    """A stream of known length as a source: cheap forwards, and started afresh when asked for what has gone by.

    Holds the last megabyte and what one `read` asks for, nothing else.
    """

    def __init__(self, opener: Callable[[], Reader], size: int, ledger: Ledger, what: str) -> None:
        self.size = size
        self._opener = opener
        self._ledger = ledger
        self._what = what
        self._restart()

    def _restart(self) -> None:
        self._reader = self._opener()
        self._chunks: deque[bytes] = deque()
        self._start = 0
        self._end = 0

    def _advance(self, keep_from: int) -> bool:
        chunk = self._reader.read(CHUNK)
        if not chunk:
            return False
        self._ledger.spend(len(chunk))
        self._chunks.append(chunk)
        self._end += len(chunk)
        if self._end > self.size:
            raise Malformed(f"{self._what} is longer than the {self.size} bytes that its header states")
        keep_from = min(keep_from, self._end - RETAINED)
        while self._chunks and self._start + len(self._chunks[0]) <= keep_from:
            self._start += len(self._chunks.popleft())
        return True

    def read(self, offset: int, size: int) -> bytes:
        check_range(offset, size, self.size, self._what)
        if offset < self._start:
            self._restart()
        end = offset + size
        while self._end < end:
            if not self._advance(offset):
                raise Malformed(f"{self._what} is cut off after {self._end} of {self.size} bytes")
        parts = []
        at = self._start
        for chunk in self._chunks:
            if at >= end:
                break
            if at + len(chunk) > offset:
                parts.append(chunk[max(0, offset - at) : end - at])
            at += len(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def finish(self) -> None:
        """Read to the end: only then is it known that the stream is whole and as long as stated."""
        while self._advance(self._end):
            pass
        if self._end != self.size:
            raise Malformed(f"{self._what} is cut off after {self._end} of {self.size} bytes")
