"""An image in the form of `docker save`, which every engine loads."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

_BLOCK = 1 << 20


def archive(
    name: str, config: str, layers: Sequence[str], members: Iterable[tuple[str, bytes | Path]]
) -> Iterator[bytes]:
    """Stream it. `config` and `layers`: what they are called in it, the lowest layer first. `members`: what is in it; a
    layer that the engine has already may be named only."""
    listed = [{"Config": config, "RepoTags": [name], "Layers": list(layers)}]
    yield from _member("manifest.json", io.BytesIO(json.dumps(listed).encode()))
    for path, content in members:
        with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as stream:
            yield from _member(path, stream)
    yield bytes(tarfile.BLOCKSIZE * 2)


def _member(name: str, stream: IO[bytes]) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    info.size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    yield info.tobuf(tarfile.GNU_FORMAT)
    while block := stream.read(_BLOCK):
        yield block
    yield bytes(-info.size % tarfile.BLOCKSIZE)
