"""Make a lock, tell what one lacks, and what of it the archive no longer serves.

What is still right in the previous lock stays as it is: a lock moves only where it must or where it is told to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from strix_finetune import knownbad, mirrors, wanted
from strix_finetune.ceilings import broken_ceilings
from strix_finetune.changes import Change, changes
from strix_finetune.errors import LockError, Problem, nearest
from strix_finetune.lockmodel import AptLock, AptPackage, Lock, PipLock, WheelSetLock, normalize
from strix_finetune.model import Stack
from strix_finetune.netconf import NetSettings
from strix_finetune.overlaps import overlaps
from strix_finetune.resolve import AptAnswer, AptResolver
from strix_finetune.rocmset import inconsistencies
from strix_finetune.wanted import Gap, missing

__all__ = ["Change", "Gap", "Stale", "check_versions", "make_lock", "missing", "stale", "version_problems"]

# its version tells which wheels an image of the suite can run
_LIBC = "libc6"


@dataclass(frozen=True, slots=True)
class Stale:
    """A locked Debian package that the archive has replaced by `now` (empty when it is gone)."""

    name: str
    version: str
    now: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}" + (f" (it has {self.now})" if self.now else "")


def stale(
    stack: Stack, lock: Lock, settings: NetSettings, cache: Path, *, resolver: AptResolver | None = None
) -> tuple[Stale, ...]:
    """The locked Debian packages that the archive no longer serves. Raises FetchFailed when it cannot be asked."""
    names = [name for name in wanted.debian_packages(stack) if name in lock.apt.packages]
    answer = (resolver or host_resolver(settings, cache)).ask(names, stack.channel.spec.apt)
    found = []
    for name in names:
        version = lock.apt.packages[name].version
        if version not in answer.served.get(name, {}):
            now = answer.candidates.get(name)
            found.append(Stale(name, version, now.version if now else ""))
    return tuple(found)


def make_lock(
    stack: Stack,
    previous: Lock | None,
    settings: NetSettings,
    cache: Path,
    *,
    update: Collection[str] = (),
    everything: bool = False,
    accept: Collection[str] = (),
    resolver: AptResolver | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Lock, tuple[Change, ...]]:
    """A lock of all that the stack asks for, and what it changes of `previous`.

    What is missing or no longer served is resolved; so is what `update` names (a Debian package, what a layer
    provides, a set, a distribution of a set, an image), and with `everything` all of it. The rest stays. `accept`: ids
    of the known-bad list that are taken all the same, and stay so while they apply. `say` hears of longer waits.

    Raises LockError for names that do not exist, requirements that contradict each other, broken ceilings and what is
    known to be bad; FetchFailed or RegistryError where the archive, an index or a registry gives no answer.
    """
    knownbad.find(stack.known_bad, accept)
    before = previous or wanted.empty_lock(stack)
    renewed = _Renewed(update, everything, stack, before)
    apt, libc = _lock_apt(stack, before, renewed, resolver or host_resolver(settings, cache))
    wheels = _lock_wheels(stack, before, renewed, libc, settings, cache)
    lock = Lock(
        stack.channel.name,
        stack.target.id,
        apt,
        pip=_lock_pip(stack, before, wheels, renewed, libc, settings),
        wheels=wheels,
        images=_lock_images(stack, before, renewed, settings, say),
        archives={name: archive for name, archive, _ in wanted.archives(stack)},
    )
    lock = replace(lock, accepted=knownbad.accepted(stack.known_bad, lock, before.accepted, accept))
    check_versions(stack, lock)
    return lock, tuple(changes(before, lock))


def check_versions(stack: Stack, lock: Lock) -> None:
    """Raise LockError with every problem of `version_problems`."""
    if problems := version_problems(stack, lock):
        raise LockError(problems)


def version_problems(stack: Stack, lock: Lock) -> tuple[Problem, ...]:
    """Where locked versions break a ceiling, come into an image in two ways, are not for one ROCm and this target, or
    are known to be bad and not accepted. Pure."""
    return (
        *broken_ceilings(stack, lock),
        *overlaps(stack, lock),
        *inconsistencies(stack, lock),
        *knownbad.refused(stack.known_bad, lock),
    )


def host_resolver(settings: NetSettings, cache: Path) -> AptResolver:
    """The resolver of this host: its own apt, or that of an image."""
    from strix_finetune.resolve.apt import AptArchive

    return AptArchive(settings, cache)


class _Renewed:
    """What is to be resolved anew although the lock has it."""

    def __init__(self, names: Collection[str], everything: bool, stack: Stack, lock: Lock) -> None:
        provided = {name: package for node in stack.nodes for name, package in node.layer.spec.provides.items()}
        self.everything = everything
        self.names = {provided.get(name, name) for name in names} | set(names)
        known = {
            *wanted.debian_packages(stack),
            *provided,
            *(name for _, name, _, _ in wanted.pip_sets(stack)),
            *(asked.name for asked in wanted.wheel_sets(stack)),
            *lock.images,
        }
        known |= {package for pip in lock.pip.values() for package in pip.packages}
        known |= {package for wheels in lock.wheels.values() for package in wheels.packages}
        problems = [
            Problem(f"nothing called '{name}' is locked", cure=nearest(name, sorted(known)))
            for name in names
            if name not in known and normalize(name) not in known
        ]
        if problems:
            raise LockError(problems)

    def __contains__(self, name: str) -> bool:
        return self.everything or name in self.names

    def of_set(self, name: str, previous: PipLock | WheelSetLock) -> Collection[str] | None:
        """What of a set may move: None for all of it."""
        if name in self:
            return None
        return sorted({normalize(named) for named in self.names} & previous.packages.keys())


def _lock_apt(stack: Stack, before: Lock, renewed: _Renewed, resolver: AptResolver) -> tuple[AptLock, str]:
    """The Debian part of the lock, and the version of the suite's C library."""
    asked, apt = wanted.debian_packages(stack), stack.channel.spec.apt
    answer = resolver.ask({*asked, _LIBC}, apt)
    problems = [
        Problem(f"Debian's suite '{apt.suite}' has no package '{name}'", asked[name], cure)
        for name, cure in answer.unknown.items()
        if name in asked
    ]
    if problems:
        raise LockError(problems)
    packages = {name: _choose(name, before, renewed, answer) for name in asked}
    libc = answer.candidates[_LIBC].version if _LIBC in answer.candidates else ""
    kept = {name: before.apt.packages.get(name) for name in packages} == packages
    if kept and before.apt.suite == apt.suite and before.apt.releases.keys() == answer.releases.keys():
        # nothing moved: a new date alone would be noise in the file, and a new root file system
        return AptLock(apt.suite, before.apt.releases, packages), libc
    return AptLock(apt.suite, answer.releases, packages), libc


def _choose(name: str, before: Lock, renewed: _Renewed, answer: AptAnswer) -> AptPackage:
    old = before.apt.packages.get(name)
    served = answer.served.get(name, {})
    if old and old.version in served and name not in renewed and before.apt.suite in answer.releases:
        return served[old.version]
    return answer.candidates[name]


def _lock_wheels(
    stack: Stack, before: Lock, renewed: _Renewed, libc: str, settings: NetSettings, cache: Path
) -> dict[str, WheelSetLock]:
    python = stack.channel.spec.python
    locked: dict[str, WheelSetLock] = {}
    for asked in wanted.wheel_sets(stack):
        old = before.wheels.get(asked.name)
        upgrade = renewed.of_set(asked.name, old) if old else None
        if old and old.declared == asked.sha256 and upgrade is not None and not upgrade:
            locked[asked.name] = old
            continue
        from strix_finetune.resolve.simple import resolve_wheels

        previous = old if old and old.python == python else None
        mirror = settings.index_url(asked.asked.index)
        made = resolve_wheels(
            asked.name,
            asked.asked,
            asked.index.model_copy(update={"url": mirror}) if mirror else asked.index,
            target=stack.target.id,
            python=python,
            glibc=libc,
            settings=settings,
            previous=previous,
            upgrade=upgrade if previous else None,
            place=asked.place,
            cache=cache,
        )
        found = sorted(made.wheels, key=lambda wheel: wheel.name)
        wheels = tuple(mirrors.canonical(wheel, asked.index, mirror) for wheel in found)
        # where nothing moved, a new time alone would be noise in the file
        same = old is not None and (old.python, old.index, old.wheels) == (made.python, made.index, wheels)
        moment = old.time if old and same else made.time
        locked[asked.name] = replace(made, time=moment, declared=asked.sha256, wheels=wheels)
    return locked


def _lock_pip(
    stack: Stack,
    before: Lock,
    wheels: Mapping[str, WheelSetLock],
    renewed: _Renewed,
    libc: str,
    settings: NetSettings,
) -> dict[str, PipLock]:
    from strix_finetune.resolve import pip

    python = stack.channel.spec.python
    locked: dict[str, PipLock] = {}
    for node, name, asked, place in wanted.pip_sets(stack):
        old = before.pip.get(name)
        upgrade = renewed.of_set(name, old) if old else None
        provided = wanted.provided_wheels(stack, node, wheels)
        declared = wanted.declared_sha256(asked, python, provided)
        if old and old.declared == declared and upgrade is not None and not upgrade:
            locked[name] = old
            continue
        previous = old.text if old and old.python == python else ""
        locked[name] = pip.resolve(
            name,
            asked,
            python=python,
            glibc=libc,
            settings=settings,
            previous=previous,
            upgrade=upgrade if previous else None,
            provided=provided,
            place=place,
        )
    return locked


def _lock_images(
    stack: Stack, before: Lock, renewed: _Renewed, settings: NetSettings, say: Callable[[str], None]
) -> Mapping[str, str]:
    from strix_finetune import borrowed

    bootstrap = stack.channel.spec.bootstrap
    names = [bootstrap.helper] if bootstrap.helper else []
    names += [bootstrap.image] if bootstrap.source == "image" else []
    kept = {name: before.images[name] for name in names if name in before.images and name not in renewed}
    # what this host needed to ask the archive
    kept |= borrowed.looked_up(settings)
    if bootstrap.source == "image" and bootstrap.image not in kept:
        from strix_finetune.resolve import image

        kept[bootstrap.image] = image.digest(bootstrap.image, settings, say)
    return kept
