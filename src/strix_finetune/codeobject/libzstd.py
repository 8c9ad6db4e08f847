"""zstd through the system's library, where Python has none: the part of `compression.zstd` that is needed here.

Debian's dpkg needs libzstd.so.1, so that it is in every image; Python has its own only from 3.14 on. The interface
used is the stable one of zstd 1.4 and later (zstd.h: ZSTD_decompressStream, ZSTD_DCtx_setParameter).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from typing import Any


class ZstdError(Exception):
    """What the library says is wrong with its input."""


class DecompressionParameter:
    """zstd.h: ZSTD_dParameter."""

    window_log_max = 100


class _Buffer(ctypes.Structure):
    """ZSTD_inBuffer and ZSTD_outBuffer: both are an address, a size and how far it is read or filled."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t), ("position", ctypes.c_size_t))


@functools.cache
def _library() -> Any:
    """Raises OSError where the system has no zstd."""
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_createDCtx.restype = ctypes.c_void_p
    library.ZSTD_freeDCtx.argtypes = (ctypes.c_void_p,)
    library.ZSTD_DCtx_setParameter.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    library.ZSTD_decompressStream.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Buffer), ctypes.POINTER(_Buffer))
    for name in ("ZSTD_DCtx_setParameter", "ZSTD_decompressStream"):
        getattr(library, name).restype = ctypes.c_size_t
    library.ZSTD_isError.argtypes = library.ZSTD_getErrorName.argtypes = (ctypes.c_size_t,)
    library.ZSTD_getErrorName.restype = ctypes.c_char_p
    return library


def available() -> bool:
    """Whether the system has the library."""
    try:
        _library()
    except OSError:
        return False
    return True


class ZstdDecompressor:
    """One frame. `eof` and `unused_data` as in the standard library's class of this name."""

    def __init__(self, options: Mapping[int, int]) -> None:
        self._context = ctypes.c_void_p(_library().ZSTD_createDCtx())
        self._pending = b""
        self.eof = False
        if not self._context:
            raise MemoryError("zstd has no memory for a decompressor")
        for parameter, value in options.items():
            _checked(_library().ZSTD_DCtx_setParameter(self._context, parameter, value))

    def __del__(self) -> None:
        if getattr(self, "_context", None):
            _library().ZSTD_freeDCtx(self._context)

    @property
    def unused_data(self) -> bytes:
        return self._pending if self.eof else b""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """At most `max_length` bytes; input that is not needed yet is kept. Raises ZstdError."""
        if self.eof:
            raise EOFError("the frame has ended")
        given = self._pending + data
        source = ctypes.create_string_buffer(given, len(given)) if given else ctypes.create_string_buffer(1)
        room = ctypes.create_string_buffer(max_length)
        feed = _Buffer(ctypes.addressof(source), len(given), 0)
        take = _Buffer(ctypes.addressof(room), max_length, 0)
        while True:
            before = feed.position, take.position
            left = _checked(_library().ZSTD_decompressStream(self._context, ctypes.byref(take), ctypes.byref(feed)))
            if left == 0:
                self.eof = True
                break
            if take.position == max_length or (feed.position, take.position) == before:
                break
        self._pending = given[feed.position :]
        return room.raw[: take.position]


def _checked(result: int) -> int:
    if _library().ZSTD_isError(result):
        raise ZstdError(_library().ZSTD_getErrorName(result).decode("ascii", "replace"))
    return result
