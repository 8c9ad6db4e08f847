"""Paths below a root folder, links and all: a fake root never leads out to the machine that it lies on."""

from __future__ import annotations

from pathlib import Path

_MOST_LINKS = 40


def inside(root: Path, path: str) -> Path | None:
    """Where `path` (of the root's own view) really lies below `root`; None for what cannot be a path.

    Links are followed as if `root` were "/". The result need not exist.
    """
    todo = path.split("/")[::-1]
    here: list[str] = []
    links = 0
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            del here[-1:]
            continue
        try:
            target = str(root.joinpath(*here, part).readlink())
        except OSError:
            here.append(part)
            continue
        except ValueError:  # a NUL
            return None
        links += 1
        if links > _MOST_LINKS:
            return None
        if target.startswith("/"):
            here = []
        todo += target.split("/")[::-1]
    return root.joinpath(*here)
