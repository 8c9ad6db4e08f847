"""Resolve a set of wheels of a channel's own index into exact files: one consistent set, each by URL, sha256 and size.

AMD's index has no hashes, so that a file whose sha256 no lock knows yet is read whole once; it stays in the download
cache, and the build does not fetch it again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from strix_finetune.errors import LockError, Place, Problem
from strix_finetune.lockmodel import WheelLock, WheelSetLock
from strix_finetune.netconf import NetSettings
from strix_finetune.resolve.browser import Browser
from strix_finetune.resolve.catalog import Catalog, Tell, say
from strix_finetune.resolve.distfiles import File
from strix_finetune.resolve.solve import Search, Unsolvable, Want, holds, want_of
from strix_finetune.resolve.unsolved import explain
from strix_finetune.schema import Index, WheelSet


def resolve_wheels(
    name: str,
    wanted: WheelSet,
    index: Index,
    *,
    target: str,
    python: str,
    glibc: str,
    settings: NetSettings,
    previous: WheelSetLock | None = None,
    upgrade: Collection[str] | None = None,
    place: Place | None = None,
    cache: Path | None = None,
    tell: Tell = say,
    sleep: Callable[[float], None] = time.sleep,
) -> WheelSetLock:
    """Resolve the set `name` for the GPU `target`, CPython `python` ("3.13") on x86_64 Linux with `glibc` ("2.41").

    `previous` is the lock of the set until now. With `upgrade` None everything may move, and every file is looked at
    anew; otherwise only the distributions named there, and what they force to move. `place` is where the set is
    declared, `cache` the user's cache folder; `tell` hears of files that are read whole.

    Raises LockError where no files fit together, FetchFailed where the index gives no answer or one that cannot be.
    """
    from strix_finetune import paths
    from strix_finetune import wanted as asking

    cache = cache or paths.find(os.environ).cache
    catalog = Catalog(wanted.index, index, python, glibc, Browser(settings, sleep=sleep), cache, tell)
    kept = {
        wheel.name: wheel
        for wheel in (previous.wheels if previous and upgrade is not None else ())
        if wheel.name not in (upgrade or ())
    }
    search = Search(
        catalog,
        roots(wanted, target, python, place),
        wanted.follow,
        {wheel.name: Version(wheel.version) for wheel in kept.values()},
    )
    files = _solve(search, name, place)
    wheels = tuple(_locked(file, catalog, kept.get(file.project), place) for file in files)
    declared = asking.declared_wheels_sha256(wanted, index, target, python)
    if previous and (previous.wheels, previous.python, previous.index) == (wheels, python, wanted.index):
        # nothing moved: a new time alone would be noise in the file
        return WheelSetLock(python, wanted.index, previous.time, declared, wheels)
    return WheelSetLock(python, wanted.index, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", declared, wheels)


def roots(wanted: WheelSet, target: str, python: str, place: Place | None) -> list[Want]:
    """What a set asks for, with the target's id in it. Raises LockError for what is no requirement."""
    found = []
    for line in wanted.requirements:
        text = line.replace("{target}", target)
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            raise LockError(Problem(f"'{text}' is not a Python requirement", place, "correct it")) from None
        if requirement.url:
            raise LockError(Problem(f"'{text}' names an address", place, "only the channel's index is asked"))
        if holds(requirement, python):
            found.append(want_of(requirement))
    return found


def _solve(search: Search, name: str, place: Place | None) -> tuple[File, ...]:
    try:
        return search.run()
    except Unsolvable as error:
        causes = error.causes
    if search.held:
        # what is kept only says what is tried first; without it the reason is the real one
        search = Search(search.catalog, search.roots, search.follow)
        try:
            return search.run()
        except Unsolvable as error:
            causes = error.causes
    raise explain(search, causes, name, place)


def _locked(file: File, catalog: Catalog, kept: WheelLock | None, place: Place | None) -> WheelLock:
    """The file by its hash: the index's, else the one that the lock has of the same file, else by reading it."""
    same = kept is not None and kept.version == str(file.version) and _file(kept.url) == _file(file.link.url)
    if kept is None or not same:
        sha256, size = catalog.digest(file)
        return WheelLock(file.project, str(file.version), file.link.url, sha256, size)
    size = catalog.probe(file).size
    if (file.link.sha256 and file.link.sha256 != kept.sha256) or (kept.size and size and kept.size != size):
        found = f"sha256 {file.link.sha256}" if file.link.sha256 else f"{size} bytes"
        has = f"sha256 {kept.sha256}" if file.link.sha256 else f"{kept.size} bytes"
        raise LockError(
            Problem(
                f"the index '{catalog.name}' has another {file.link.file} than the lock ({found} instead of {has})",
                place,
                f"find out why, then lock it with '--update {file.project}'",
            )
        )
    return WheelLock(file.project, str(file.version), file.link.url, kept.sha256, kept.size or size)


def _file(url: str) -> str:
    from urllib.parse import unquote

    return unquote(url.rsplit("/", 1)[-1])
