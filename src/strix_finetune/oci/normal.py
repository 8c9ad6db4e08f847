"""What of a tree is the image, and what is only how and where it was made: times, logs, caches, marks of the engine.

Two builds of one lock differ in these, and in nothing that a program in the image reads.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Container
from dataclasses import replace

from strix_finetune.oci.tree import Entry, Kind, Tree, above

# 2000-01-01, which build steps also give to what they make: byte code names the time of its source, and stays right
FIXED_TIME = 946684800

# the engine mounts these for the time of a step, and leaves an empty file or a folder where there was none
_MOUNTED = ("etc/resolv.conf", "etc/hosts", "etc/hostname")
_KERNEL = ("dev", "proc", "sys")
# buildah takes away a folder that it mounted on, BuildKit leaves one where there was none
MOUNT_POINTS = (*_KERNEL, "media", "mnt", "run", "var/cache/strix-finetune")
_NOISE = (
    ".dockerenv",
    "run/.containerenv",
    "root/.cache/*",
    "tmp/*",
    "var/tmp/*",
    "var/cache/apt/*",
    "var/cache/debconf/*-old",
    "var/cache/ldconfig/aux-cache",
    "var/lib/apt/lists/*",
    "var/lib/dpkg/*-old",
    "var/lib/dpkg/lock*",
    "var/lib/dpkg/triggers/Lock",
    "var/lib/systemd/random-seed",
)
# apt wants these folders, so they stay when they are empty. Whose they are follows from whether the host let apt's own
# user reach the archive; apt sets that right by itself
_KEPT_FOLDERS = ("var/cache/apt/archives", "var/cache/apt/archives/partial", "var/lib/apt/lists/partial")
_NOISY = re.compile("|".join(fnmatch.translate(glob) for glob in _NOISE))


def is_noise(entry: Entry) -> bool:
    """Whether an entry is no part of the image."""
    path = entry.path
    if path.partition("/")[0] in _KERNEL:
        return "/" in path
    if path in _MOUNTED:
        return entry.kind is Kind.FILE and entry.size == 0
    if path.startswith("var/log/"):
        # programs want their empty logs and the folders of them
        return entry.kind is Kind.FILE and entry.size > 0
    return path not in _KEPT_FOLDERS and _NOISY.fullmatch(path) is not None


def normal(tree: Tree, epoch: int) -> Tree:
    """The tree without noise, with times that a build does not make.

    A file that is younger than `epoch` (seconds since 1970, the date of the locked archive) was made by the build, and
    so gets the fixed time; what came out of a package keeps its own. Folders say nothing by their times.
    """
    found: Tree = {}
    dropped: set[str] = set()
    for path, entry in tree.items():
        if is_noise(entry):
            dropped.add(path)
            continue
        fixed = entry.kind is Kind.FOLDER or entry.mtime > epoch
        if fixed:
            entry = replace(entry, mtime=FIXED_TIME)
        if path in _KERNEL:
            entry = replace(entry, mode=0o755)
        elif path in _KEPT_FOLDERS:
            entry = replace(entry, uid=0, gid=0)
        found[path] = entry
    return {path: entry for path, entry in found.items() if not _lost(path, dropped)}


def settled(below: Tree, tree: Tree) -> Tree:
    """The tree with those folders for mounts that the layers below have, as long as they are empty.

    The lowest layer decides on them: of no other is it known whether it made or lost one.
    """
    if not below:
        return tree
    filled = {folder for path in tree for folder in above(path)}
    found = dict(tree)
    for path in MOUNT_POINTS:
        if path in filled:
            continue
        if path in found and path not in below and found[path].kind is Kind.FOLDER:
            del found[path]
        elif path not in found and path in below and below[path].kind is Kind.FOLDER:
            found[path] = below[path]
    return found


def _lost(path: str, dropped: Container[str]) -> bool:
    """Whether a folder above is noise: what is in it goes along."""
    return any(folder in dropped for folder in above(path))
