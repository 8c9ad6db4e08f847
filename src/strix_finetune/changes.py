"""What a new lock changes of the one before, as values. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from strix_finetune.lockmodel import Lock


@dataclass(frozen=True, slots=True)
class Change:
    """What a new lock changes; `old` or `new` is empty for what was added or removed.

    `kind`: "apt", "wheels", "pip", "image", "archive" or "accepted" (of what is known to be bad).
    """

    kind: str
    name: str
    old: str = ""
    new: str = ""

    def __str__(self) -> str:
        if self.old and self.new:
            return f"{self.name} {self.old} → {self.new}"
        return f"{self.name} {self.new} added" if self.new else f"{self.name} {self.old} removed"


def changes(before: Lock, after: Lock) -> Iterator[Change]:
    """Each difference, by kind and name; a set that is new or gone is one line."""
    old_apt = {name: package.version for name, package in before.apt.packages.items()}
    new_apt = {name: package.version for name, package in after.apt.packages.items()}
    if old_apt:
        yield from _differences("apt", old_apt, new_apt)
    elif new_apt:
        yield Change("apt", f"Debian's suite '{after.apt.suite}'", "", f"with {len(new_apt)} packages")
    yield from _set_changes("wheels", "set of wheels", _held_wheels(before), _held_wheels(after))
    yield from _set_changes("pip", "set", _held_pip(before), _held_pip(after))
    yield from _differences("image", before.images, after.images)
    # the hash says that it is another file; where it is the same, the address is what changed
    moved = {
        name
        for name, archive in before.archives.items()
        if name in after.archives and archive.sha256 == after.archives[name].sha256
    }
    old_archives, new_archives = (
        {name: archive.url if name in moved else archive.sha256[:12] for name, archive in lock.archives.items()}
        for lock in (before, after)
    )
    yield from _differences("archive", old_archives, new_archives)
    yield from _differences("accepted", before.accepted, after.accepted)


_Held = Mapping[str, Mapping[str, str]]


def _held_pip(lock: Lock) -> _Held:
    return {name: held.packages for name, held in lock.pip.items()}


def _held_wheels(lock: Lock) -> _Held:
    """With the beginning of the hash: an index may put another file in the place of one."""
    return {
        name: {wheel.name: f"{wheel.version} ({wheel.sha256[:12]})" for wheel in held.wheels}
        for name, held in lock.wheels.items()
    }


def _set_changes(kind: str, words: str, before: _Held, after: _Held) -> Iterator[Change]:
    for name in sorted({*before, *after}):
        if name in before and name in after:
            yield from _differences(kind, before[name], after[name])
        else:
            # one line instead of a hundred
            count = f"with {len((after if name in after else before)[name])} packages"
            yield Change(kind, f"{words} '{name}'", count if name in before else "", count if name in after else "")


def _differences(kind: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield Change(kind, name, old.get(name, ""), new.get(name, ""))
