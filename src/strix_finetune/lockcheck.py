"""Look a lock over without changing it: what is missing, wrong or known to be bad, and what is no longer served.

The first part asks nobody. The second asks the archive, the channel's indexes and the servers of archives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from strix_finetune import knownbad, wanted
from strix_finetune import lock as locks
from strix_finetune.lockmodel import Lock
from strix_finetune.model import Stack
from strix_finetune.netconf import NetSettings
from strix_finetune.resolve import AptResolver, served
from strix_finetune.resolve.browser import Browser
from strix_finetune.resolve.catalog import Catalog

# what is served counts here, not what fits an image
_ANY_GLIBC = "2.99"


@dataclass(frozen=True, slots=True)
class Report:
    """`problems` need a change of the lock; `notes` are good to know."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __add__(self, other: Report) -> Report:
        return Report(self.problems + other.problems, self.notes + other.notes)


def offline(stack: Stack, lock: Lock | None) -> Report:
    """The lock against the definitions and the known-bad list. Pure."""
    gaps = [f"missing: {gap}" for gap in locks.missing(stack, lock)]
    if lock is None:
        return Report(tuple(gaps))
    wrong = [f"wrong: {problem}" for problem in locks.version_problems(stack, lock)]
    accepted = [f"accepted: {hit}" for hit in knownbad.check(stack.known_bad, lock) if hit.entry.id in lock.accepted]
    return Report((*gaps, *wrong), tuple(accepted))


def online(
    stack: Stack,
    lock: Lock,
    settings: NetSettings,
    cache: Path,
    *,
    resolver: AptResolver | None = None,
    sleep: Callable[[float], None] | None = None,
) -> Report:
    """What of the lock is no longer served. Raises FetchFailed where somebody gives no answer."""
    stale = [f"no longer served: {item}" for item in locks.stale(stack, lock, settings, cache, resolver=resolver)]
    findings = list(_served(stack, lock, settings, cache, sleep))
    return Report(
        (*stale, *(str(found) for found in findings if found.lost)),
        tuple(str(found) for found in findings if not found.lost),
    )


def _served(
    stack: Stack, lock: Lock, settings: NetSettings, cache: Path, sleep: Callable[[float], None] | None
) -> Iterator[served.Finding]:
    browser = Browser(settings, sleep=sleep) if sleep else Browser(settings)
    for asked in wanted.wheel_sets(stack):
        if asked.name in lock.wheels:
            mirror = settings.index_url(asked.asked.index)
            index = asked.index.model_copy(update={"url": mirror}) if mirror else asked.index
            held = lock.wheels[asked.name]
            catalog = Catalog(asked.asked.index, index, held.python, _ANY_GLIBC, browser, cache)
            requirements = wanted.expanded(asked.asked, stack.target.id).requirements
            yield from served.wheels(held, requirements, catalog)
    for name, held_archive in lock.archives.items():
        if held_archive.url.startswith(("https://", "http://")):
            yield from served.archive(name, held_archive, browser)
