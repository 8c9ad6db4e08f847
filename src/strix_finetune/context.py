"""The build context of a layer: which files, and the tar archive of them, streamed and byte-deterministic."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from strix_finetune.errors import DefinitionError, Place, Problem
from strix_finetune.model import ContextFile, Node
from strix_finetune.paths import Folders

CHUNK = 1 << 20
_IGNORED = ("__pycache__", ".git", ".DS_Store", ".mypy_cache", ".ruff_cache")


def layer_files(node: Node, folders: Folders) -> tuple[ContextFile, ...]:
    """The files of a layer that are part of its key. Raises when they are larger than the layer allows."""
    layer, context = node.layer, node.layer.spec.context
    found = [*tree(layer.folder / "files", "files")]
    found += [ContextFile(f"patches/{patch.name}", patch) for patch in layer.patches]
    for package in context.packages:
        found += tree(folders.python / package, f"python/{package}")
    for name in context.data:
        found += tree(getattr(folders, name), f"data/{name}")
    _check_size(found, context.max_mb, Place(layer.source.path, layer.source.positions.line(("context", "max_mb"))))
    return tuple(sorted(found, key=lambda file: file.path))


def tree(root: Path, prefix: str) -> Iterator[ContextFile]:
    """The regular files under `root`. Links are followed only inside it; caches of editors and Python are left out."""
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in _IGNORED)
        for name in sorted(files):
            path = Path(folder, name)
            if name in _IGNORED or name.endswith((".pyc", "~", ".swp")):
                continue
            mode = path.stat().st_mode
            if not stat.S_ISREG(mode):
                raise DefinitionError(
                    Problem("only regular files can be part of a layer", Place(path), "remove it from files/")
                )
            inside = path.relative_to(root).as_posix()
            yield ContextFile(f"{prefix}/{inside}", path, executable=bool(mode & 0o111))


def _check_size(files: Iterable[ContextFile], max_mb: int, place: Place) -> None:
    sizes = {file.path: _size(file) for file in files}
    total = sum(sizes.values())
    if total > max_mb * 10**6:
        largest = max(sizes, key=lambda path: sizes[path])
        message = (
            f"the build context would hold {total / 1e6:.0f} MB and may hold {max_mb} MB; the largest file is"
            f" {largest} with {sizes[largest] / 1e6:.0f} MB"
        )
        raise DefinitionError(Problem(message, place, "remove the file, or raise [context] max_mb"))


def _size(file: ContextFile) -> int:
    return file.source.stat().st_size if isinstance(file.source, Path) else len(file.source)


def tar(files: Iterable[ContextFile]) -> Iterator[bytes]:
    """Stream a tar archive of `files` in the given order: owner 0, time 0, modes 0644 or 0755, no folder entries."""
    for file in files:
        info = tarfile.TarInfo(file.path)
        info.mode = 0o755 if file.executable else 0o644
        info.size = _size(file)
        yield info.tobuf(tarfile.GNU_FORMAT)
        sent = 0
        for piece in _pieces(file):
            # a file that grows while it is read must not break the archive
            piece = piece[: info.size - sent]
            sent += len(piece)
            yield piece
        if sent < info.size:
            raise DefinitionError(Problem("the file shrank while it was read", Place(Path(file.path)), "build again"))
        if rest := sent % tarfile.BLOCKSIZE:
            yield b"\0" * (tarfile.BLOCKSIZE - rest)
    yield b"\0" * (tarfile.BLOCKSIZE * 2)


def _pieces(file: ContextFile) -> Iterator[bytes]:
    with file.source.open("rb") if isinstance(file.source, Path) else io.BytesIO(file.source) as stream:
        while piece := stream.read(CHUNK):
            yield piece
