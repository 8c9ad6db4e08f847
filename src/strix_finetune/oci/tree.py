"""A file system tree as layers make it: what each path is, and what one tree changes over another. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

# how a layer says that something below is gone: image specification, layer.md, "Whiteouts"
WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
# `Entry.where` of a file whose content was not read
NOWHERE = (-1, 0)


class Kind(Enum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    CHARACTER = "character device"
    BLOCK = "block device"
    FIFO = "fifo"


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a tree, without a slash at either end.

    `mode`: permission bits. `size` in bytes and `sha256` (64 hex digits) of a file. `target`: of a symbolic link.
    `mtime` in whole seconds. `device`: major and minor. `inode`: the same for the names of one file (hard links) in a
    layer. `where`: which layer's copy holds the content, and at which byte.
    """

    path: str
    kind: Kind
    mode: int
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    size: int = 0
    sha256: str = ""
    target: str = ""
    xattrs: tuple[tuple[str, str], ...] = ()
    device: tuple[int, int] = (0, 0)
    inode: tuple[int, str] = (0, "")
    where: tuple[int, int] = (0, 0)

    @property
    def meaning(self) -> tuple[object, ...]:
        """All that a program could tell apart but for the time: what makes two entries the same."""
        mode = 0o777 if self.kind is Kind.LINK else self.mode
        device = self.device if self.kind in (Kind.CHARACTER, Kind.BLOCK) else (0, 0)
        return (self.kind, mode, self.uid, self.gid, self.size, self.sha256, self.target, self.xattrs, device)


Tree = dict[str, Entry]


def above(path: str) -> Iterator[str]:
    """The folders that hold a path, the nearest first, without the root."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def apply(tree: Tree, layer: Iterable[Entry], gone: Iterable[str], opaque: Iterable[str]) -> None:
    """Put a layer on a tree, in place. `gone`: paths that it removes; `opaque`: folders of which it hides the rest."""
    entries = list(layer)
    removed, hidden = set(gone), set(opaque)
    # what becomes something else than a folder takes along what was in it
    removed.update(
        entry.path
        for entry in entries
        if entry.kind is not Kind.FOLDER and (old := tree.get(entry.path)) and old.kind is Kind.FOLDER
    )
    if removed or hidden:
        doomed = [
            path
            for path in tree
            if path in removed or ("" in hidden) or any(up in removed or up in hidden for up in above(path))
        ]
        for path in doomed:
            del tree[path]
    for entry in entries:
        tree[entry.path] = entry
        # what unpacks a layer makes the folders that it does not name
        for folder in above(entry.path):
            if folder in tree:
                break
            tree[folder] = Entry(folder, Kind.FOLDER, 0o755)


@dataclass(frozen=True, slots=True)
class Change:
    """What a tree adds to the one below it: entries that are new or other, and paths that are gone, all sorted."""

    entries: tuple[Entry, ...]
    gone: tuple[str, ...]


def change(below: Mapping[str, Entry], tree: Mapping[str, Entry]) -> Change:
    """What must be laid over `below` to get `tree`. An entry that differs in its time alone is no change."""
    entries = [entry for path, entry in tree.items() if path not in below or below[path].meaning != tree[path].meaning]
    gone = []
    for path in below.keys() - tree.keys():
        folder = path.rpartition("/")[0]
        # where the folder is gone too, or is something else now, that says it
        if not folder or (folder in tree and tree[folder].kind is Kind.FOLDER):
            gone.append(path)
    return Change(tuple(sorted(entries, key=lambda entry: entry.path)), tuple(sorted(gone)))


def with_folders(change: Change, tree: Mapping[str, Entry]) -> tuple[Entry, ...]:
    """The entries of a change and every folder above them and above what is gone, sorted by path.

    A layer must name them: what unpacks it makes a missing folder with attributes of its own, which then win over
    those of the layer below.
    """
    found = {entry.path: entry for entry in change.entries}
    for path in [*found, *change.gone]:
        for folder in above(path):
            if folder in found:
                break
            found[folder] = tree[folder]
    return tuple(found[path] for path in sorted(found))
