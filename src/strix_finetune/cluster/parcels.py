"""What a recipe reads on this machine, as parcels: named by what is in them, so that a node gets each once.

A parcel is a file, or a folder with everything in it; links are followed. Its digest is over names, sizes and contents.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from strix_finetune.errors import InputError, Place, Problem

MANIFEST = ".manifest"


@dataclass(frozen=True, slots=True)
class Part:
    """One file. `name` is relative to the parcel's folder, "/" between its parts; `size` in bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Parcel:
    """`path`: where it lies here, and where the recipe will look for it on each node."""

    path: Path
    folder: bool
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Bytes of content."""
        return sum(part.size for part in self.parts)

    @cached_property
    def manifest(self) -> str:
        """Its files as `sha256sum --check` reads them, relative to the parcel itself."""
        return "".join(f"{part.sha256}  {part.name}\n" for part in self.parts)

    @cached_property
    def digest(self) -> str:
        kind = "folder" if self.folder else "file"
        return hashlib.sha256(f"{kind} {self.path.name}\n{self.manifest}".encode()).hexdigest()

    @property
    def stored(self) -> str:
        """Where it lies on a node, below the folder of parcels."""
        return f"{self.digest}/{self.path.name}"

    def source(self, part: Part) -> Path:
        return self.path / part.name if self.folder else self.path


def gather(paths: Sequence[Path], on_large: Callable[[Path, int], None]) -> list[Parcel]:
    """Read all of it once. `on_large` is told of what takes a while: a path and its bytes. Raises InputError."""
    return [_parcel(path, on_large) for path in without_targets(paths)]


def without_targets(paths: Sequence[Path]) -> list[Path]:
    """Leave out folders that are there only because links of another one lead there: links are followed."""
    from strix_finetune.recipefacts import with_targets

    targets = {target for path in paths for target in list(with_targets(path))[1:] if target.is_dir()}
    return [path for path in paths if path not in targets or path.is_symlink()]


def _parcel(path: Path, on_large: Callable[[Path, int], None]) -> Parcel:
    try:
        files = sorted(_files(path)) if path.is_dir() else [(path.name, path.stat().st_size)]
        total = sum(size for _, size in files)
        if total > 256 << 20:
            on_large(path, total)
        parts = []
        for name, size in files:
            if "\n" in name or "\\" in name:
                raise InputError(Problem("its name holds a line end or a backslash", Place(path / name), "rename it"))
            with (path / name if path.is_dir() else path).open("rb") as stream:
                parts.append(Part(name, size, hashlib.file_digest(stream, "sha256").hexdigest()))
    except OSError as error:
        where = Path(error.filename) if error.filename else path
        raise InputError(Problem(f"it cannot be read: {error.strerror}", Place(where))) from None
    return Parcel(path, path.is_dir(), tuple(parts))


def _files(folder: Path) -> Iterable[tuple[str, int]]:
    for place, _, names in os.walk(folder, followlinks=True):
        for name in names:
            path = Path(place, name)
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path.stat().st_size


class _Out:
    """What tarfile writes to."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.write = write


def stream(parcel: Parcel, write: Callable[[bytes], object]) -> None:
    """Write the parcel as a tar archive, its manifest first. Raises OSError where the reader has gone."""
    with tarfile.open(fileobj=_Out(write), mode="w|", bufsize=1 << 20) as tar:  # type: ignore[call-overload]
        text = parcel.manifest.encode()
        tar.addfile(_info(MANIFEST, len(text)), io.BytesIO(text))
        for part in parcel.parts:
            with parcel.source(part).open("rb") as file:
                tar.addfile(_info(f"{parcel.path.name}/{part.name}" if parcel.folder else part.name, part.size), file)


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info
