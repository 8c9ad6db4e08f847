"""`vendor.json`: what a folder of vendored inputs holds, for which locks, and where each file came from."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from strix_finetune import leftovers
from strix_finetune.errors import InputError, Place, Problem, StrixError, WorkError

FORMAT = 1
NAME = "vendor.json"
# the folders that are filled
ROOTS = ("apt", "archives", "images", "wheels")
# what `vendor` writes itself: index pages and the like
MADE_HERE = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: its path in the folder, sha256, size in bytes, the URL that it came from (empty: written by `vendor`),
    and when (ISO 8601, UTC; empty: it is still to be fetched)."""

    path: str
    sha256: str
    size: int
    source: str = MADE_HERE
    time: str = ""

    @property
    def in_archive(self) -> str:
        """Of a file of the apt part: where it is below the root of the archive, and of any mirror of it."""
        return self.path.split("/", 2)[2]


@dataclass(frozen=True, slots=True)
class LockEntry:
    """What was vendored for one channel and target.

    `lock`: sha256 of the lock's files. `asks`: sha256 of what the layers ask of apt, which dependencies follow from.
    `mirror`: the folder of the apt part. `debs`: layer → the .deb files that its build installs. `files`: every path
    that this lock needs. `complete`: whether all of them were there at the end of a run.
    """

    lock: str
    asks: str
    mirror: str
    debs: Mapping[str, tuple[str, ...]]
    files: tuple[str, ...]
    complete: bool = False
    time: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """`locks`: "<channel>-<target>" → what it needs; `files`: path → entry."""

    locks: Mapping[str, LockEntry] = field(default_factory=dict)
    files: Mapping[str, Entry] = field(default_factory=dict)

    def needs(self, name: str) -> list[Entry]:
        """The files of one lock."""
        return [self.files[path] for path in self.locks[name].files]

    def with_lock(self, name: str, lock: LockEntry, files: Iterable[Entry]) -> Manifest:
        """With `name` made anew; files that no lock needs any more are left out.

        A file that was there before, and is the same, keeps its source and time.
        """
        locks = {**self.locks, name: lock}
        entries = dict(self.files)
        for entry in files:
            old = entries.get(entry.path)
            entries[entry.path] = old if old and (old.sha256, old.size) == (entry.sha256, entry.size) else entry
        needed = {path for held in locks.values() for path in held.files}
        return Manifest(locks, {path: entries[path] for path in sorted(needed)})

    def with_pages(self, pages: Iterable[Entry]) -> Manifest:
        """With these index pages, which belong to no lock in particular."""
        needed = {path for held in self.locks.values() for path in held.files}
        files = {path: entry for path, entry in self.files.items() if path in needed}
        for page in pages:
            old = self.files.get(page.path)
            files[page.path] = old if old and old.sha256 == page.sha256 else page
        return Manifest(self.locks, files)

    def arrived(self, paths: Iterable[str], time: str) -> Manifest:
        """With `paths` noted as there since `time`, unless they were before."""
        changed = {path: replace(self.files[path], time=time) for path in paths if not self.files[path].time}
        return Manifest(self.locks, {**self.files, **changed})


def made(path: str, content: bytes) -> Entry:
    """The entry of a file that `vendor` writes itself."""
    return Entry(path, hashlib.sha256(content).hexdigest(), len(content), MADE_HERE, now())


def now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def text(manifest: Manifest) -> str:
    """The same text for the same manifest."""
    locks = {
        name: {
            "lock": lock.lock,
            "asks": lock.asks,
            "complete": lock.complete,
            "time": lock.time,
            "mirror": lock.mirror,
            "debs": {layer: list(paths) for layer, paths in sorted(lock.debs.items())},
            "files": sorted(lock.files),
        }
        for name, lock in sorted(manifest.locks.items())
    }
    files = {
        path: {"sha256": entry.sha256, "size": entry.size, "from": entry.source, "time": entry.time}
        for path, entry in sorted(manifest.files.items())
    }
    return json.dumps({"format": FORMAT, "locks": locks, "files": files}, indent=1, ensure_ascii=False) + "\n"


def save(folder: Path, manifest: Manifest) -> None:
    write(folder, NAME, text(manifest).encode())


def write(folder: Path, path: str, content: bytes) -> None:
    """Put a file into the folder, whole or not at all."""
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    leftovers.write(target, content)


def read(folder: Path) -> Manifest:
    """The manifest of a folder. Raises InputError when there is none, or it is none."""
    path = folder / NAME
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{folder} is no folder of vendored inputs: it has no {NAME}",
            cure=f"make it with 'strix-finetune vendor {folder}'",
        ) from None
    except OSError as error:
        raise InputError(Problem(f"cannot be read ({error.strerror})", Place(path))) from None
    except ValueError as error:
        raise _broken(path, f"it is no JSON ({error})") from None
    if isinstance(data, dict) and isinstance(data.get("format"), int) and data["format"] > FORMAT:
        raise InputError(Problem(f"it has a newer format than {FORMAT}", Place(path), "update strix-finetune"))
    try:
        return _parsed(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _broken(path, f"{type(error).__name__}: {error}") from None


def _broken(path: Path, reason: str) -> StrixError:
    cure = f"make it anew with 'strix-finetune vendor {path.parent} --renew'"
    return InputError(Problem(f"this is no manifest of vendored inputs: {reason}", Place(path), cure))


def _parsed(data: Any) -> Manifest:
    if data["format"] != FORMAT:
        raise ValueError(f"format {data['format']!r}")
    files = {
        path: Entry(_inside(path), str(row["sha256"]), int(row["size"]), str(row["from"]), str(row["time"]))
        for path, row in data["files"].items()
    }
    locks = {}
    for name, row in data["locks"].items():
        debs = {layer: tuple(paths) for layer, paths in row["debs"].items()}
        listed = tuple(row["files"])
        for path in (*listed, *(path for paths in debs.values() for path in paths)):
            if path not in files:
                raise ValueError(f"'{path}' is needed and not listed")
        mirror = _inside(str(row["mirror"])) if row["mirror"] else ""
        complete = row["complete"] is True
        locks[name] = LockEntry(str(row["lock"]), str(row["asks"]), mirror, debs, listed, complete, str(row["time"]))
    return Manifest(locks, files)


def _inside(path: str) -> str:
    """A path that stays in the folder. Raises ValueError for another one."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\\" in path or "\0" in path:
        raise ValueError(f"'{path}' is not a path inside the folder")
    return path


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder, for one process at a time. Raises WorkError when another one has it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{folder} is a file", cure="name a folder") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise WorkError(f"another 'strix-finetune vendor' is at work in {folder}", cure="wait for its end") from None
    finally:
        os.close(handle)


def remove_parts(folder: Path) -> None:
    """Remove what interrupted runs left half-written of files that are whole by now, or no longer needed."""
    for root in ROOTS:
        for part in (folder / root).rglob("*.part"):
            part.unlink(missing_ok=True)


def remove_unlisted(folder: Path, before: Manifest, after: Manifest) -> int:
    """Remove what `before` listed and `after` does not, with folders that are empty then; nothing else is touched.

    Returns the number of removed files.
    """
    gone = before.files.keys() - after.files.keys()
    for path in gone:
        (folder / path).unlink(missing_ok=True)
        (folder / f"{path}.part").unlink(missing_ok=True)
        for parent in PurePosixPath(path).parents:
            with contextlib.suppress(OSError):
                os.rmdir(folder / parent)  # noqa: PTH106 (the folder itself has vendor.json in it)
    return len(gone)
