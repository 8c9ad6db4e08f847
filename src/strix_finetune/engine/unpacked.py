"""A layer without its compression, whoever packed it and wherever it comes from."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"


@contextmanager
def unpacked(handle: IO[bytes]) -> Iterator[IO[bytes]]:
    """tarfile may not know zstd, and of gzip it reads the first member alone: many builders write a layer in several.

    `handle` is buffered. What is not packed is handed on as it is. Raises tarfile.ReadError for what is packed wrongly.
    """
    head = cast(io.BufferedReader, handle).peek(len(ZSTD))
    if head.startswith(GZIP):
        try:
            with gzip.GzipFile(fileobj=handle, mode="rb") as inside:
                yield cast(IO[bytes], inside)
        except zlib.error as error:
            raise tarfile.ReadError(str(error)) from error
    elif head.startswith(ZSTD):
        from strix_finetune.codeobject.codec import zstd_module

        zstd = zstd_module()
        try:
            with zstd.ZstdFile(handle) as plain:
                yield plain
        except zstd.ZstdError as error:
            raise tarfile.ReadError(str(error)) from error
    else:
        yield handle
