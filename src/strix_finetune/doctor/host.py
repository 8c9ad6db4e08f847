"""A host as its files say: read lazily below a root folder, each file once, and noted for the report."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from strix_finetune.doctor.inside import inside

if TYPE_CHECKING:
    from strix_finetune.doctor.edges import Edges

REAL = Path("/")
# Who owns device files cannot be copied by everybody: `stat -c '%a %u %g %n'` of them goes here, in a copied tree.
OWNERS = "owners.txt"
# /var/lib/dpkg/status is the largest text that is read: some MiB
_LARGEST = 32 << 20


@dataclass(frozen=True, slots=True)
class Owner:
    """Permission bits, and numeric user and group, of a file."""

    mode: int
    uid: int
    gid: int


@dataclass(slots=True)
class _Cache:
    """What was read, by path: shared by all views of a host."""

    data: dict[tuple[str, int], bytes | None] = field(default_factory=dict)
    names: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    owners: dict[str, Owner] | None = None


class Host:
    """Read access to a host. Paths are absolute in its own view, with or without the first slash.

    Nothing here raises for what a file holds or lacks: a missing or unreadable file is None, a missing folder empty.
    `edges` is None for a fake root: what cannot be told from files is then not shown.
    """

    def __init__(
        self,
        root: Path = REAL,
        *,
        env: Mapping[str, str] | None = None,
        edges: Edges | None = None,
        targets: Mapping[str, Mapping[str, object]] | None = None,
        wanted: str = "",
    ) -> None:
        self.root = root
        self.edges = edges
        self.targets = targets or {}
        self.wanted = wanted
        self._cache = _Cache()
        self._seen: dict[str, bool] = {}
        self._env = env

    @property
    def real(self) -> bool:
        return self.root == REAL

    @property
    def env(self) -> Mapping[str, str]:
        """The environment: the caller's own, or that of the process whose /proc/self a copied tree has."""
        if self._env is None:
            pairs = (self.text("proc/self/environ") or "").split("\0")
            self._env = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        return self._env

    def view(self) -> Host:
        """The same host with an empty list of what was read."""
        made = Host(self.root, env=self._env, edges=self.edges, targets=self.targets, wanted=self.wanted)
        made._cache = self._cache
        return made

    def seen(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What was found and what was looked for in vain, as absolute paths in the order of reading."""
        found = tuple(f"/{path}" for path, there in self._seen.items() if there)
        return found, tuple(f"/{path}" for path, there in self._seen.items() if not there)

    def data(self, path: str, limit: int = _LARGEST) -> bytes | None:
        """At most `limit` bytes of a regular file from its beginning."""
        path = path.strip("/")
        if (path, limit) not in self._cache.data:
            self._cache.data[path, limit] = self._read(path, limit)
        found = self._cache.data[path, limit]
        self._seen[path] = found is not None
        return found

    def text(self, path: str) -> str | None:
        found = self.data(path)
        return None if found is None else found.decode("utf-8", "replace")

    def line(self, path: str) -> str:
        """The text of a file of one line, as those of /sys are; empty without it."""
        return (self.text(path) or "").strip()

    def number(self, path: str) -> int | None:
        return number(self.line(path))

    def exists(self, path: str) -> bool:
        place = self.place(path)
        there = False
        if place is not None:
            try:
                there = place.exists()
            except (OSError, ValueError):
                there = False
        self._seen[path.strip("/")] = there
        return there

    def names(self, path: str) -> tuple[str, ...]:
        """What a folder holds, numbers in their order."""
        path = path.strip("/")
        if path not in self._cache.names:
            place = self.place(path)
            try:
                listed = sorted((item.name for item in place.iterdir()), key=_natural) if place else None
            except (OSError, ValueError):
                listed = None
            self._cache.names[path] = None if listed is None else tuple(listed)
        found = self._cache.names[path]
        self._seen[path] = found is not None
        return found or ()

    def glob(self, pattern: str) -> tuple[str, ...]:
        """Paths that fit a pattern, in order; "*" does not cross a slash."""
        found = [""]
        for part in pattern.strip("/").split("/"):
            if any(char in part for char in "*?["):
                found = [f"{base}/{name}" for base in found for name in self.names(base) if fnmatchcase(name, part)]
            else:
                found = [f"{base}/{part}" for base in found]
        return tuple(path.strip("/") for path in found if self._there(path))

    def owner(self, path: str) -> Owner | None:
        """Who may use a file: from the list of a copied tree if it has one, else from the file."""
        path = path.strip("/")
        if not self.real:
            if self._cache.owners is None:
                self._cache.owners = _owners(self.text(OWNERS) or "")
            if path in self._cache.owners:
                self._seen[path] = True
                return self._cache.owners[path]
        place = self.place(path)
        try:
            state = place.stat() if place else None
        except (OSError, ValueError):
            state = None
        self._seen[path] = state is not None
        return Owner(stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid) if state else None

    def place(self, path: str) -> Path | None:
        """The path on the machine that doctor runs on."""
        path = path.strip("/")
        return REAL / path if self.real else inside(self.root, path)

    def _there(self, path: str) -> bool:
        place = self.place(path)
        try:
            return place is not None and place.exists()
        except (OSError, ValueError):
            return False

    def _read(self, path: str, limit: int) -> bytes | None:
        place = self.place(path)
        if place is None:
            return None
        try:
            # a pipe would wait for somebody to write
            handle = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return None
            with os.fdopen(handle, "rb", closefd=False) as stream:
                return stream.read(limit)
        except OSError:
            return None
        finally:
            os.close(handle)


def number(text: str, base: int = 10) -> int | None:
    """A whole number, or None for anything else. With base 0 as in C."""
    try:
        return int(text.strip(), base)
    except ValueError:
        return None


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [
        (0, int(part), "") if part.isdecimal() and part.isascii() else (1, 0, part)
        for part in re.split(r"([0-9]{1,18})", name)
    ]


def _owners(text: str) -> dict[str, Owner]:
    found = {}
    for line in text.splitlines():
        words = line.split(None, 3)
        if len(words) == 4:
            mode, uid, gid = number(words[0], 8), number(words[1]), number(words[2])
            if mode is not None and uid is not None and gid is not None:
                found[words[3].strip("/ ")] = Owner(mode, uid, gid)
    return found
