"""What takes the room in an image: the folders that its own layers fill, read from the engine's archive of it."""

from __future__ import annotations

import heapq
import tarfile
from collections.abc import Mapping
from typing import Any

from strix_finetune.engine import archive
from strix_finetune.engine.base import Engine
from strix_finetune.errors import EngineError, Problem

Folders = Mapping[str, int]


def own_folders(engine: Engine, image: str, parent: str) -> dict[str, int]:
    """Folder ("usr/lib", empty for the root) → bytes of the files right in it, of what `image` adds to `parent`.

    What a step wrote counts even where a later one removed it again: it is in the image all the same. `parent` is
    empty for an image that stands on nothing. The image is streamed out of the engine and never held. Raises
    EngineError when it cannot be exported.
    """
    below = len(engine.history(parent)) if parent else 0
    exported = archive.read(engine, image, _folders)
    total: dict[str, int] = {}
    for layer in exported.layers[len(exported.layers) - _own(exported.config, below) :]:
        for folder, size in (layer or {}).items():
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


def _folders(layer: tarfile.TarFile) -> dict[str, int]:
    """Folder → bytes of the files right in it, of one layer; up to where it ends, where it is cut off."""
    found: dict[str, int] = {}
    try:
        for member in layer:
            if member.isfile():
                folder = member.name.removeprefix("./").strip("/").rpartition("/")[0]
                found[folder] = found.get(folder, 0) + member.size
    except tarfile.ReadError:
        return found
    return found


def _own(config: Mapping[str, Any], below: int) -> int:
    """How many layers were added after the first `below` steps of the image's history."""
    history = config.get("history") or []
    try:
        return sum(not step.get("empty_layer") for step in history[below:])
    except (TypeError, AttributeError):
        raise EngineError(Problem("the engine's archive of the image does not say what its layers are")) from None
