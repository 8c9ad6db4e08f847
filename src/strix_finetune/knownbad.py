"""Versions that are known to be bad: images/known-bad.toml, read strictly, and held against a lock.

An entry says when it applies (a distribution, a range of its versions, a range of the ROCm, dates of nightly builds)
and to which targets; everything that it says must hold. What somebody accepts all the same is written into the lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, StringConstraints

from strix_finetune.errors import InputError, Place, Problem, nearest
from strix_finetune.lockmodel import Lock, normalize
from strix_finetune.pep508 import range_fault
from strix_finetune.schema import Name, Strict

if TYPE_CHECKING:
    from packaging.version import Version

FILE = "known-bad.toml"
OPTION = "--accept-known-bad"
Distribution = Annotated[str, StringConstraints(pattern=r"^([a-z0-9]([a-z0-9._-]*[a-z0-9])?)?$", max_length=64)]
Day = Annotated[str, StringConstraints(pattern=r"^20\d{6}$")]
Pattern = Annotated[str, StringConstraints(pattern=r"^[a-z0-9*?]+$", max_length=32)]


class KnownBad(Strict):
    """One entry. `targets`: patterns of target ids. `versions` are those of `distribution`, `rocm` those of the ROCm
    that it (without one: anything locked) is for. `nightlies`: first and last day of builds, as in their version.

    `unless`: a distribution that puts it right. `link` and `date` (of the report, ISO 8601) say where it is from.
    """

    id: Name
    targets: list[Pattern] = Field(min_length=1)
    distribution: Distribution = ""
    versions: str = ""
    rocm: str = ""
    nightlies: list[Day] = Field(default=[], max_length=2)
    unless: Distribution = ""
    reason: str = Field(min_length=1)
    link: str = Field(pattern=r"^https://\S+$")
    date: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")


class KnownBadFile(Strict):
    """images/known-bad.toml."""

    bad: list[KnownBad] = Field(default=[])


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry that applies to a lock, and what of the lock it is about ("torch 2.10.0+rocm7.2")."""

    entry: KnownBad
    what: str

    def __str__(self) -> str:
        return f"{self.what}: {self.entry.reason} ({self.entry.id}, {self.entry.date}, {self.entry.link})"


def read(images: Path, problems: list[Problem]) -> tuple[KnownBad, ...]:
    """The list of a folder of definitions; there may be none. On any fault append to `problems`."""
    from strix_finetune import tomlfile

    path = images / FILE
    if not path.exists():
        return ()
    found = tomlfile.read(path, KnownBadFile, problems)
    if found is None:
        return ()
    spec, source = found
    seen: set[str] = set()
    for number, entry in enumerate(spec.bad):
        for key, message in _faults(entry, seen):
            problems.append(Problem(message, Place(path, source.positions.line(("bad", number, key)))))
        seen.add(entry.id)
    return tuple(spec.bad)


def _faults(entry: KnownBad, seen: set[str]) -> Iterator[tuple[str, str]]:
    if entry.id in seen:
        yield "id", f"two entries have the id '{entry.id}'"
    for key in ("versions", "rocm"):
        if getattr(entry, key) and (fault := range_fault(getattr(entry, key))):
            yield key, fault
    if entry.versions and not entry.distribution:
        yield "versions", "versions are those of a distribution, and the entry names none"
    if not (entry.versions or entry.rocm or entry.nightlies):
        yield "id", f"'{entry.id}' applies to everything: it has no versions, no rocm and no nightlies"
    if entry.nightlies and (len(entry.nightlies) != 2 or entry.nightlies[0] > entry.nightlies[1]):
        yield "nightlies", 'nightlies are a first and a last day, such as ["20260609", "20260612"]'
    try:
        date.fromisoformat(entry.date)
    except ValueError:
        yield "date", f"'{entry.date}' is not a date"


def check(entries: Sequence[KnownBad], lock: Lock) -> tuple[Hit, ...]:
    """What of the lock is known to be bad on its target, accepted or not. Pure."""
    chosen = [entry for entry in entries if any(fnmatchcase(lock.target, pattern) for pattern in entry.targets)]
    if not chosen or not (lock.wheels or lock.pip):
        return ()
    things = _things(lock)
    releases = {thing.rocm for thing in things if thing.rocm is not None}
    names = {thing.name for thing in things}
    hits = []
    for entry in chosen:
        if entry.unless and normalize(entry.unless) in names:
            continue
        thing = next((thing for thing in things if _applies(entry, thing, releases)), None)
        if thing:
            hits.append(Hit(entry, thing.words if entry.distribution else f"ROCm {thing.rocm}"))
    return tuple(hits)


def refused(entries: Sequence[KnownBad], lock: Lock) -> Iterator[Problem]:
    """What is known to be bad and not accepted in the lock, as problems."""
    for hit in check(entries, lock):
        if hit.entry.id not in lock.accepted:
            yield Problem(
                f"known to be bad on {lock.target}: {hit}",
                None,
                f"lock another version, or accept it with 'strix-finetune lock {OPTION} {hit.entry.id}'",
            )


def accepted(
    entries: Sequence[KnownBad], lock: Lock, before: Mapping[str, str], accept: Collection[str]
) -> dict[str, str]:
    """What the lock says of acceptance: id → day, for what applies to it and was accepted before or is now."""
    today = date.today().isoformat()
    return {
        hit.entry.id: before.get(hit.entry.id, today)
        for hit in check(entries, lock)
        if hit.entry.id in before or hit.entry.id in accept
    }


def find(entries: Sequence[KnownBad], names: Collection[str]) -> tuple[KnownBad, ...]:
    """The entries of these ids. Raises InputError for one that is unknown."""
    known = {entry.id: entry for entry in entries}
    for name in names:
        if name not in known:
            raise InputError(f"the list of what is known to be bad has no '{name}'", cure=nearest(name, list(known)))
    return tuple(known[name] for name in names)


@dataclass(frozen=True, slots=True)
class _Thing:
    """A locked distribution: normalized name, version, and the ROCm that it is for where its version says it."""

    name: str
    version: Version
    rocm: Version | None

    @property
    def words(self) -> str:
        return f"{self.name} {self.version}"


def _things(lock: Lock) -> list[_Thing]:
    from packaging.version import InvalidVersion, Version

    from strix_finetune.resolve.versions import rocm_of

    held = [pair for wheels in lock.wheels.values() for pair in wheels.packages.items()]
    held += [pair for pip in lock.pip.values() for pair in pip.packages.items()]
    things = []
    for name, text in held:
        try:
            version = Version(text)
        except InvalidVersion:
            continue
        things.append(_Thing(name, version, rocm_of(name, version)))
    return things


def _applies(entry: KnownBad, thing: _Thing, releases: set[Version]) -> bool:
    if entry.distribution and thing.name != normalize(entry.distribution):
        return False
    if entry.versions and not _within(thing.version, entry.versions):
        return False
    # what says no ROCm of its own runs on that of the others; without a distribution, each thing speaks for itself
    own = {thing.rocm} if thing.rocm is not None else releases if entry.distribution else set()
    if entry.rocm and not any(_within(rocm, entry.rocm) for rocm in own):
        return False
    return not entry.nightlies or any(_built_within(rocm, entry.nightlies) for rocm in own)


def _within(version: Version, demand: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(demand).contains(version, prereleases=True)


def _built_within(rocm: Version, days: Sequence[str]) -> bool:
    from strix_finetune.resolve.versions import nightly

    return days[0] <= nightly(rocm) <= days[1]
