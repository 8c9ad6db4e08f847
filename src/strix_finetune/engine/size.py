"""How large an image is where it matters to the people who pull it: compressed, as registries hold it."""

from __future__ import annotations

import io
import os
import tarfile
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO

from strix_finetune.engine.base import Engine
from strix_finetune.engine.places import IterReader
from strix_finetune.engine.unpacked import GZIP, ZSTD
from strix_finetune.errors import EngineError, Problem

_BLOCK = 1024 * 1024
_WINDOW = 32 * 1024  # what deflate can look back over
_LEVEL = 6


def compressed_size(engine: Engine, ref: str) -> int:
    """Bytes of the layers of an image after gzip -6, as engines push them; `push` packs a few percent tighter.

    The image is streamed out of the engine and never held: memory stays at a few MiB. Layers that the engine
    hands out compressed count as they are. Raises EngineError when it cannot be exported.
    """
    stream = engine.export(ref)
    workers = max(1, os.cpu_count() or 1)
    total = layers = 0
    try:
        with (
            ThreadPoolExecutor(workers) as pool,
            tarfile.open(fileobj=io.BufferedReader(IterReader(stream), _BLOCK), mode="r|") as archive,
        ):
            for member in archive:
                handle = archive.extractfile(member) if member.isfile() else None
                if handle is None:
                    continue
                size = _layer_size(handle, member.size, pool, workers)
                total += size or 0
                layers += size is not None
    except tarfile.TarError as error:
        raise EngineError(Problem(f"the export of {ref} is not a whole archive: {error}")) from error
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()
    if not layers:
        raise EngineError(Problem(f"the export of {ref} holds no layer"))
    return total


def _layer_size(handle: IO[bytes], size: int, pool: ThreadPoolExecutor, workers: int) -> int | None:
    """Compressed bytes of one member of the archive; None when it is no layer (configuration, manifests)."""
    first = handle.read(_BLOCK)
    if first.startswith((GZIP, ZSTD)):
        return size
    if first[257:262] != b"ustar":
        # An empty layer is nothing but the two zero blocks that end a tar.
        return _deflated(first, b"") if first and not first.strip(b"\0") else None
    waiting: deque[Future[int]] = deque()
    total = 0
    for block, before in _blocks(first, handle):
        waiting.append(pool.submit(_deflated, block, before))
        if len(waiting) > 2 * workers:
            total += waiting.popleft().result()
    return total + sum(future.result() for future in waiting)


def _blocks(first: bytes, handle: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """(block, what stands before it), so that blocks compress at the same time and nearly as well as in a row."""
    before = b""
    block = first
    while block:
        yield block, before
        before = block[-_WINDOW:]
        block = handle.read(_BLOCK)


def _deflated(block: bytes, before: bytes) -> int:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=before)
    return len(packer.compress(block)) + len(packer.flush(zlib.Z_SYNC_FLUSH))
