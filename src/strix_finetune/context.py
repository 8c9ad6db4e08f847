"""The build context of a layer: which files, and the tar archive of them, streamed and byte-deterministic."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from strix_finetune.errors import DefinitionError, Place, Problem, WorkError
from strix_finetune.model import ContextFile, Node
from strix_finetune.paths import Folders

CHUNK = 1 << 20
_IGNORED = ("__pycache__", ".git", ".DS_Store", ".mypy_cache", ".ruff_cache")


def layer_files(node: Node, folders: Folders) -> tuple[ContextFile, ...]:
    """The files of a layer that are part of its key. Raises when they are larger than the layer allows."""
    layer, context = node.layer, node.layer.spec.context
    found = [*tree(layer.folder / "files", "files")] if (layer.folder / "files").exists() else []
    found += [ContextFile(f"patches/{patch.name}", patch) for patch in node.patches]
    for package in context.packages:
        found += tree(folders.python / package, f"python/{package}")
    for name in context.data:
        found += tree(getattr(folders, name), f"data/{name}")
    _check_size(found, context.max_mb, Place(layer.source.path, layer.source.positions.line(("context", "max_mb"))))
    return tuple(sorted(found, key=lambda file: file.path))


def tree(root: Path, prefix: str) -> Iterator[ContextFile]:
    """The regular files under `root`. Links are followed only inside it; caches of editors and Python are left out.

    Raises DefinitionError for what can be no part of a layer: nothing is left out silently.
    """

    def unreadable(error: OSError) -> None:
        path = Path(error.filename or root)
        problem = Problem(f"the folder cannot be read ({(error.strerror or str(error)).lower()})", Place(path))
        raise DefinitionError(problem) from error

    inside = root.resolve()
    for folder, names, files in os.walk(root, onerror=unreadable):
        names[:] = sorted(name for name in names if name not in _IGNORED)
        for name in names:
            if Path(folder, name).is_symlink():
                problem = Problem("a link to a folder cannot be part of a layer", Place(Path(folder, name)), "copy it")
                raise DefinitionError(problem)
        for name in sorted(files):
            path = Path(folder, name)
            if name in _IGNORED or name.endswith((".pyc", "~", ".swp")):
                continue
            if path.is_symlink():
                _check_link(path, inside)
            mode = path.stat().st_mode
            if not stat.S_ISREG(mode):
                problem = Problem("only regular files can be part of a layer", Place(path), f"remove it from {root}")
                raise DefinitionError(problem)
            # the owner's bit: the others follow the umask of whoever wrote the file
            executable = bool(mode & stat.S_IXUSR)
            yield ContextFile(f"{prefix}/{path.relative_to(root).as_posix()}", path, executable)


def _check_link(path: Path, root: Path) -> None:
    if not path.exists():
        raise DefinitionError(Problem("the link leads nowhere", Place(path), "remove it"))
    if not path.resolve().is_relative_to(root):
        raise DefinitionError(Problem("the link leads out of its folder", Place(path), "copy the file instead"))


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
    """Stream a tar archive of `files` in the given order: owner 0, time 0, modes 0644 or 0755, no folder entries.

    Raises WorkError when a file is no longer what its key was made of.
    """
    for file in files:
        info = tarfile.TarInfo(file.path)
        info.mode = 0o755 if file.executable else 0o644
        info.size = _size(file)
        yield info.tobuf(tarfile.GNU_FORMAT)
        hasher = start_digest(file)
        sent = 0
        for piece in _pieces(file):
            # a file that grows while it is read must not break the archive
            piece = piece[: info.size - sent]
            if not piece:
                break
            hasher.update(piece)
            sent += len(piece)
            yield piece
        if sent < info.size or (file.digest and hasher.hexdigest() != file.digest):
            place = Place(file.source) if isinstance(file.source, Path) else None
            raise WorkError(Problem(f"{file.path} changed while its layer was built", place, "build again"))
        if rest := sent % tarfile.BLOCKSIZE:
            yield b"\0" * (tarfile.BLOCKSIZE - rest)
    yield b"\0" * (tarfile.BLOCKSIZE * 2)


def digest(file: ContextFile) -> str:
    """sha256 of one context file, read in pieces; the executable bit counts."""
    hasher = start_digest(file)
    for piece in _pieces(file):
        hasher.update(piece)
    return hasher.hexdigest()


def start_digest(file: ContextFile) -> hashlib._Hash:
    return hashlib.sha256(b"x" if file.executable else b"-")


def _pieces(file: ContextFile) -> Iterator[bytes]:
    with file.source.open("rb") if isinstance(file.source, Path) else io.BytesIO(file.source) as stream:
        while piece := stream.read(CHUNK):
            yield piece
