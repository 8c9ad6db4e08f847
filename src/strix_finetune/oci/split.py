"""Cut what one layer of the stack adds into parts, each of which becomes a layer of the image. Pure.

What a definition names as a group is a part of its own, so that an update of it moves nothing else. The rest is cut
where it would be larger than registries and their clients handle well, at borders of folders that depend on their
names and not on what lies before them: a package that grows moves its own part alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from strix_finetune.errors import InputError, Problem
from strix_finetune.oci.tree import Entry

# Registries refuse layers of 10 GB; long before, one that breaks off costs minutes to begin again.
LIMIT = 2_000_000_000
# OverlayFS and containerd take 127
MOST_LAYERS = 120
# a folder of this many path components is not cut
_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Part:
    """One layer to be: its name ("unsloth", "rest", "rest-2"), its entries, and what it removes; sorted by path."""

    name: str
    entries: tuple[Entry, ...]
    gone: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)


def split(
    entries: Sequence[Entry],
    gone: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    *,
    limit: int = LIMIT,
) -> tuple[Part, ...]:
    """The parts of one layer, "rest" first. `groups`: name → globs of paths; what is in a folder goes along with it.

    No part is larger than `limit` bytes, unpacked. Raises InputError where one file alone is.
    """
    found: dict[str, list[Entry]] = {name: [] for name in ("rest", *groups)}
    patterns = {name: _pattern(globs) for name, globs in groups.items()}
    for entry in entries:
        if entry.size > limit:
            raise InputError(
                Problem(
                    f"/{entry.path} has {entry.size / 1e9:,.1f} GB, and a layer may have {limit / 1e9:,.1f} GB",
                    cure="leave it out of the image or split it; registries refuse larger layers",
                )
            )
        name = next((name for name, pattern in patterns.items() if pattern.match(entry.path)), "rest")
        found[name].append(entry)
    parts: list[Part] = []
    for name, members in found.items():
        removed = tuple(gone) if name == "rest" else ()
        pieces = list(_cut(members, limit))
        if not pieces and removed:
            pieces = [[]]
        for number, piece in enumerate(pieces, start=1):
            label = name if number == 1 else f"{name}-{number}"
            parts.append(Part(label, tuple(piece), removed if number == 1 else ()))
    return tuple(parts)


def _pattern(globs: Iterable[str]) -> re.Pattern[str]:
    """Matches a path that a glob names, and all below it. "*" and "?" stay within one folder."""
    return re.compile("|".join(f"{_regex(glob.strip('/'))}(?:/|$)" for glob in globs) or r"(?!)")


def _regex(glob: str) -> str:
    return "".join({"*": "[^/]*", "?": "[^/]"}.get(letter) or re.escape(letter) for letter in glob)


def _cut(entries: Sequence[Entry], limit: int) -> Iterable[list[Entry]]:
    if sum(entry.size for entry in entries) <= limit:
        if entries:
            yield list(entries)
        return
    piece: list[Entry] = []
    size = 0
    for unit in _units(entries, limit // 4):
        weight = sum(entry.size for entry in unit)
        # a border of its own: half full, and the name says so
        named = size > limit // 2 and hashlib.sha256(unit[0].path.encode(errors="surrogateescape")).digest()[0] < 64
        if piece and (size + weight > limit or named):
            yield piece
            piece, size = [], 0
        piece += unit
        size += weight
    if piece:
        yield piece


def _units(entries: Sequence[Entry], most: int, depth: int = 1) -> Iterable[list[Entry]]:
    """What stays together: a folder, unless it has more than `most` bytes; then what is in it."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault("/".join(entry.path.split("/")[:depth]), []).append(entry)
    for members in groups.values():
        if len(members) > 1 and sum(entry.size for entry in members) > most and depth < _DEPTH:
            yield from _units(members, most, depth + 1)
        elif sum(entry.size for entry in members) > most:
            yield from ([entry] for entry in members)
        else:
            yield members
