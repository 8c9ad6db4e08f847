"""The lock of one channel and target as a value: every outside input by exact version, size and hash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==(?P<version>[^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Release:
    """The signed Release file of one suite: its Date (ISO 8601, UTC, to the second) and the sha256 of the file."""

    date: str
    sha256: str


@dataclass(frozen=True, slots=True)
class AptPackage:
    """One requested Debian package: exact version, and size in bytes and sha256 of its .deb."""

    version: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class AptLock:
    """`releases` has the main suite and every extra suite of the channel; `packages` only what layers ask for."""

    suite: str
    releases: Mapping[str, Release]
    packages: Mapping[str, AptPackage] = field(default_factory=dict)

    @property
    def date(self) -> str:
        """Date of the main suite's Release file."""
        return self.releases[self.suite].date

    @property
    def epoch(self) -> int:
        """The same in seconds since 1970: SOURCE_DATE_EPOCH of what is built from this lock."""
        from datetime import datetime

        return int(datetime.fromisoformat(self.date).timestamp())


@dataclass(frozen=True, slots=True)
class PipLock:
    """One resolved set: the Python that it is for ("3.14") and the hash-locked requirements text.

    `declared` is the sha256 of what was asked for: when a layer asks for something else, the set is resolved anew.
    """

    python: str
    text: str
    declared: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def packages(self) -> dict[str, str]:
        """Normalized name → version, in the order of the text."""
        return {name: version for name, version, _ in requirements(self.text)}

    @property
    def files(self) -> dict[tuple[str, str], frozenset[str]]:
        """(normalized name, version) → sha256 of every file that may be installed for it."""
        return {(name, version): hashes for name, version, hashes in requirements(self.text)}


@dataclass(frozen=True, slots=True)
class WheelLock:
    """One file of a channel's index: a wheel, or a source distribution where the project has nothing else.

    `name` is normalized; `version` has its local part ("2.13.0+rocm10.0.0"). `url` is where the file was found.
    `size` is in bytes, 0 where nobody recorded it: then the sha256 alone decides.
    """

    name: str
    version: str
    url: str
    sha256: str
    size: int = 0

    @property
    def file(self) -> str:
        """The file's own name: in a URL "+" is often written as "%2B"."""
        from urllib.parse import unquote

        return unquote(re.split(r"[?#]", self.url, maxsplit=1)[0].rsplit("/", 1)[-1])


@dataclass(frozen=True, slots=True)
class WheelSetLock:
    """One resolved set of wheels: for which Python ("3.13"), from which index of the channel, and when (ISO 8601, UTC).

    `declared` is the sha256 of what was asked for, as in `PipLock`.
    """

    python: str
    index: str
    time: str
    declared: str
    wheels: tuple[WheelLock, ...]

    @property
    def packages(self) -> dict[str, str]:
        """Normalized name → version."""
        return {wheel.name: wheel.version for wheel in self.wheels}

    @property
    def text(self) -> str:
        """The set as hash-locked requirements: name==version --hash=sha256:…, one a line, sorted by name."""
        ordered = sorted(self.wheels, key=lambda wheel: wheel.name)
        return "".join(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in ordered)


@dataclass(frozen=True, slots=True)
class ArchiveLock:
    """A file that a layer builds from; `size` in bytes."""

    url: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Lock:
    """Every outside input of one channel and target. `images`: fully qualified name → "sha256:…".

    `accepted`: id on the known-bad list → the day (ISO 8601) on which somebody accepted it all the same.
    """

    channel: str
    target: str
    apt: AptLock
    pip: Mapping[str, PipLock] = field(default_factory=dict)
    wheels: Mapping[str, WheelSetLock] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)
    archives: Mapping[str, ArchiveLock] = field(default_factory=dict)
    accepted: Mapping[str, str] = field(default_factory=dict)


def normalize(name: str) -> str:
    """A Python distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(text: str) -> list[tuple[str, str, frozenset[str]]]:
    """Split a hash-locked requirements text into (normalized name, version, sha256s).

    Raises ValueError with the 1-based line number and a sentence as its two arguments.
    """
    found: list[tuple[str, str, frozenset[str]]] = []
    start, held = 1, ""
    for number, line in enumerate(text.split("\n"), start=1):
        if not held:
            start = number
        if held == "" and (not line.strip() or line.lstrip().startswith("#")):
            continue
        if held and not line.strip():
            break
        held += line.rstrip("\\") + " "
        if line.endswith("\\"):
            continue
        entry, held = held.strip(), ""
        match = _REQUIREMENT.match(entry)
        if match is None:
            raise ValueError(start, f"'{entry[:60]}' is not of the form name==version")
        hashes = frozenset(_HASH.findall(entry))
        if not hashes:
            raise ValueError(start, f"'{match['name']}' has no sha256")
        found.append((normalize(match["name"]), match["version"], hashes))
    if held:
        raise ValueError(start, "the last requirement is cut off")
    return found
