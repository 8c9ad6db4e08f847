"""Which of an index's files an image can install: PEP 425 tags, the Python and glibc of the image, x86_64 Linux. Pure.

One file a version is chosen; a source distribution counts only where the version has no wheel at all, because AMD
publishes one project (`rocm`) that way, and everything else would need a compiler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from strix_finetune.resolve.page import Link
from strix_finetune.resolve.versions import order

_MACHINE = "x86_64"
# the oldest glibc for which there are wheels of this machine, and what older names of platforms stand for
_OLDEST = 5
_ALIASES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True, slots=True)
class File:
    """A file that can be installed. `project` is normalized."""

    project: str
    version: Version
    link: Link
    is_wheel: bool = True


@dataclass(frozen=True, slots=True)
class Listing:
    """What the index has of one project. `files`: the newest first, one a version.

    `served`: whether it has a page of the project. `unfit`, `yanked`: versions of which there is nothing else.
    `strange`: the name of a file that belongs to another project, where the page has no other files.
    """

    project: str
    served: bool = True
    files: tuple[File, ...] = ()
    unfit: frozenset[Version] = field(default=frozenset())
    yanked: frozenset[Version] = field(default=frozenset())
    strange: str = ""


def supported(python: str, glibc: str) -> dict[Tag, int]:
    """The tags that CPython `python` ("3.13") on Linux with `glibc` ("2.41") can use → rank, 0 being the best."""
    match = re.match(r"2\.(\d+)", glibc)
    newest = int(match[1]) if match else 17
    platforms: list[str] = []
    for minor in range(newest, _OLDEST - 1, -1):
        platforms.append(f"manylinux_2_{minor}_{_MACHINE}")
        if minor in _ALIASES:
            platforms.append(f"{_ALIASES[minor]}_{_MACHINE}")
    platforms.append(f"linux_{_MACHINE}")
    numbers = [int(part) for part in python.split(".")]
    tags = [
        *cpython_tags(numbers, platforms=platforms),
        *compatible_tags(numbers, interpreter=f"cp{''.join(map(str, numbers))}", platforms=platforms),
    ]
    return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}


def choose(project: str, links: Sequence[Link], tags: dict[Tag, int], python: str) -> Listing:
    """The files of `project` (normalized) that fit."""
    named = [(link, named) for link in links if (named := _parse(link)) is not None]
    own = [(link, parsed) for link, parsed in named if parsed.project == project]
    if not own:
        return Listing(project, strange=named[0][0].file if named else "")
    has_wheels = {parsed.version for _, parsed in own if parsed.tags}
    best: dict[Version, tuple[tuple[int, ...], File]] = {}
    yanked: set[Version] = set()
    for link, parsed in own:
        version = parsed.version
        if link.yanked:
            yanked.add(version)
            continue
        rank = _rank(parsed, tags, version in has_wheels)
        if rank is None or not _runs_on(link.python, python):
            continue
        file = File(project, version, link, bool(parsed.tags))
        if version not in best or rank < best[version][0]:
            best[version] = rank, file
    known = {parsed.version for _, parsed in own}
    return Listing(
        project,
        files=tuple(file for _, (_, file) in sorted(best.items(), key=lambda item: order(item[0]), reverse=True)),
        unfit=frozenset(known - best.keys() - yanked),
        yanked=frozenset(yanked - best.keys()),
    )


@dataclass(frozen=True, slots=True)
class _Parsed:
    project: str
    version: Version
    tags: frozenset[Tag] = frozenset()
    build: tuple[int, str] | tuple[()] = ()


def _parse(link: Link) -> _Parsed | None:
    """What a file's name says; None for a name that is none."""
    # ValueError is the base of packaging's own exceptions, and what a number with too many digits raises
    try:
        if link.file.endswith(".whl"):
            name, version, build, tags = parse_wheel_filename(link.file)
            return _Parsed(name, version, tags, build)
        return _Parsed(*parse_sdist_filename(link.file))
    except ValueError:
        return None


def _rank(parsed: _Parsed, tags: dict[Tag, int], has_wheel: bool) -> tuple[int, ...] | None:
    """How well a file fits, smaller being better; None where it does not."""
    if not parsed.tags:
        return None if has_wheel else (0,)
    ranks = [tags[tag] for tag in parsed.tags if tag in tags]
    # of two builds of the same version the later one counts
    return (min(ranks), -parsed.build[0] if parsed.build else 0) if ranks else None


def _runs_on(demand: str, python: str) -> bool:
    """Whether Requires-Python admits the Python; one that cannot be read is ignored, as pip does."""
    try:
        # the image has the newest patch release of it
        return not demand or SpecifierSet(demand).contains(f"{python}.99", prereleases=True)
    except InvalidSpecifier:
        return True


def versions(files: Iterable[File]) -> str:
    """The newest versions of a listing, for a sentence."""
    found = [str(file.version) for file in files]
    return ", ".join(found[:3]) + (" …" if len(found) > 3 else "")
