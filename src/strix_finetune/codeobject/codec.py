"""Decompression in bounded steps: what a stream expands to is never held, however small its input."""

from __future__ import annotations

import zlib
from typing import Any, Literal, Protocol

from .faults import Malformed, Unsupported
from .limits import Limits
from .source import Source

Method = Literal["zlib", "zstd"]
INPUT = 256 * 1024


class _Engine(Protocol):
    """One running decompression: feed when it wants input, take at most `size` bytes a time."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused(self) -> int: ...

    def step(self, data: bytes, size: int) -> bytes: ...


class _Zlib:
    def __init__(self) -> None:
        self._state = zlib.decompressobj()
        self._pending = b""

    @property
    def eof(self) -> bool:
        return self._state.eof

    @property
    def unused(self) -> int:
        return len(self._state.unused_data)

    def step(self, data: bytes, size: int) -> bytes:
        found = self._state.decompress(self._pending + data, size)
        self._pending = self._state.unconsumed_tail
        return found


class _Zstd:
    def __init__(self, window_log: int) -> None:
        zstd = zstd_module()
        self._state = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: window_log})

    @property
    def eof(self) -> bool:
        return bool(self._state.eof)

    @property
    def unused(self) -> int:
        return len(self._state.unused_data)

    def step(self, data: bytes, size: int) -> bytes:
        found: bytes = self._state.decompress(data, size)
        return found


def zstd_module() -> Any:
    """The standard library's zstd from Python 3.14 on; before, the same code as a package, or the system's library."""
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        try:
            from backports import zstd  # type: ignore[import-not-found,import-untyped,no-redef,unused-ignore]
        except ImportError:
            from . import libzstd

            if not libzstd.available():
                raise Unsupported(
                    "holds zstd-compressed code, and neither this Python nor the system has zstd",
                    cure="install backports.zstd, or use Python 3.14",
                ) from None
            return libzstd
    return zstd


class Decompressor:
    """A reader of one compressed stream inside a source, from `offset` for at most `size` bytes.

    `consumed` is the length of the compressed stream, known once `read` has returned nothing.
    """

    def __init__(self, method: Method, source: Source, offset: int, size: int, limits: Limits, what: str) -> None:
        self._engine: _Engine = _Zlib() if method == "zlib" else _Zstd(limits.window_log)
        self._method = method
        self._source = source
        self._offset = offset
        self._left = size
        self._fed = 0
        self._what = what

    @property
    def consumed(self) -> int:
        return self._fed - self._engine.unused

    def read(self, size: int) -> bytes:
        data = b""
        while not self._engine.eof:
            try:
                found = self._engine.step(data, size)
            except zlib.error as error:
                raise Malformed(f"{self._what} does not decompress: {error}") from None
            except Exception as error:
                if type(error).__name__ != "ZstdError":
                    raise
                raise Malformed(f"{self._what} does not decompress: {error}") from None
            if found:
                return found
            if self._engine.eof:
                break
            data = self._feed()
            if not data:
                raise Malformed(f"{self._what} is cut off: its {self._method} stream does not end")
        return b""

    def _feed(self) -> bytes:
        size = min(INPUT, self._left)
        data = self._source.read(self._offset, size) if size else b""
        self._offset += size
        self._left -= size
        self._fed += size
        return data
