"""What takes the room in an image: the folders that its own layers fill, read from the engine's archive of it."""

from __future__ import annotations

import heapq
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import IO, Any, cast

from strix_finetune.engine.base import Engine
from strix_finetune.engine.places import IterReader
from strix_finetune.errors import EngineError, Problem

_BLOCK = 1024 * 1024
_ZSTD = b"\x28\xb5\x2f\xfd"
# configurations and manifests are some kilobytes; anything larger is a layer
_TEXT_LIMIT = 8 * 1024 * 1024

Folders = Mapping[str, int]


def own_folders(engine: Engine, image: str, parent: str) -> dict[str, int]:
    """Folder ("usr/lib", empty for the root) → bytes of the files right in it, of what `image` adds to `parent`.

    What a step wrote counts even where a later one removed it again: it is in the image all the same. `parent` is
    empty for an image that stands on nothing. The image is streamed out of the engine and never held. Raises
    EngineError when it cannot be exported.
    """
    below = len(engine.history(parent)) if parent else 0
    layers: dict[str, dict[str, int]] = {}
    links: dict[str, str] = {}
    texts: dict[str, bytes] = {}
    stream = engine.export(image)
    try:
        with tarfile.open(fileobj=io.BufferedReader(IterReader(stream), _BLOCK), mode="r|") as archive:
            for member in archive:
                if member.issym() or member.islnk():
                    links[member.name] = _target(member)
                handle = archive.extractfile(member) if member.isfile() else None
                if handle is None:
                    continue
                head = cast(io.BufferedReader, handle).peek(512)[:512]
                if head[:1] in (b"{", b"["):
                    texts[member.name] = handle.read(_TEXT_LIMIT)
                elif member.size > 0:
                    layers[member.name] = _folders(handle, head)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise EngineError(Problem(f"the export of {image} is not a whole archive: {error}")) from error
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()
    total: dict[str, int] = {}
    for name in _own_layers(texts, below):
        for folder, size in layers.get(links.get(name, name), {}).items():
            total[folder] = total.get(folder, 0) + size
    return total


def heaviest(folders: Folders, count: int = 3) -> list[tuple[str, int]]:
    """The folders that say most about where the bytes are: (path, bytes of everything in it), largest first.

    From the root down: a folder that holds more than a quarter of all and is mostly subfolders gives way to them.
    """
    whole: dict[str, int] = {}
    children: dict[str, set[str]] = {}
    for folder, size in folders.items():
        path = folder
        whole[path] = whole.get(path, 0) + size
        while path:
            above = path.rpartition("/")[0]
            children.setdefault(above, set()).add(path)
            whole[above] = whole.get(above, 0) + size
            path = above
    total = whole.get("", 0)
    queue = [(-total, "")]
    found: list[tuple[str, int]] = []
    while queue and len(found) < count:
        size, path = heapq.heappop(queue)
        below = children.get(path, set())
        if 4 * -size > total and 2 * sum(whole[child] for child in below) > -size:
            for child in below:
                heapq.heappush(queue, (-whole[child], child))
        elif size < 0:
            found.append((f"/{path}", -size))
    return found


def _target(member: tarfile.TarInfo) -> str:
    """The member that a link stands for: of a symbolic one, from where it lies."""
    if member.islnk():
        return member.linkname
    parts: list[str] = []
    for part in (PurePosixPath(member.name).parent / member.linkname).parts:
        if part == "..":
            parts[-1:] = []
        else:
            parts.append(part)
    return "/".join(parts)


def _folders(handle: IO[bytes], head: bytes) -> dict[str, int]:
    """Folder → bytes of the files right in it, of one layer. Empty for what is no tar."""
    found: dict[str, int] = {}
    try:
        with _unpacked(handle, head) as plain, tarfile.open(fileobj=plain, mode="r|*", bufsize=_BLOCK) as layer:
            for member in layer:
                if member.isfile():
                    folder = member.name.removeprefix("./").strip("/").rpartition("/")[0]
                    found[folder] = found.get(folder, 0) + member.size
    except tarfile.ReadError:
        return found
    return found


@contextmanager
def _unpacked(handle: IO[bytes], head: bytes) -> Iterator[IO[bytes]]:
    """A layer without its zstd, which tarfile of this Python may not know; gzip it does."""
    if not head.startswith(_ZSTD):
        yield handle
        return
    from strix_finetune.codeobject.codec import zstd_module

    with zstd_module().ZstdFile(handle) as plain:
        yield plain


def _own_layers(texts: Mapping[str, bytes], below: int) -> list[str]:
    """Names of the layers that were added after the first `below` steps of the image's history."""
    try:
        manifest: dict[str, Any] = json.loads(texts["manifest.json"])[0]
        history: list[dict[str, Any]] = json.loads(texts[manifest["Config"]]).get("history") or []
        names: list[str] = manifest["Layers"]
    except (KeyError, ValueError, IndexError, TypeError, AttributeError):
        raise EngineError(Problem("the engine's archive of the image does not say what its layers are")) from None
    own = sum(not step.get("empty_layer") for step in history[below:])
    return names[len(names) - own :]
