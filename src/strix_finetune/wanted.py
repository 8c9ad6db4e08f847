"""What the layers of a stack ask for, with the line that asks, and what a lock lacks of it. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from strix_finetune.errors import LockError, Place, Problem
from strix_finetune.lockmodel import AptLock, ArchiveLock, Lock
from strix_finetune.model import Node, Stack
from strix_finetune.schema import PipSet


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that the layers ask for and the lock does not have, or has for other wishes than today's."""

    kind: str
    name: str
    place: Place | None = None

    def __str__(self) -> str:
        return f"the {self.kind} {self.name}"


def missing(stack: Stack, lock: Lock | None) -> tuple[Gap, ...]:
    """What the lock lacks for the layers of the stack. Pure: nothing is asked."""
    return tuple(_gaps(stack, lock or empty_lock(stack)))


def empty_lock(stack: Stack) -> Lock:
    return Lock(stack.channel.name, stack.target.id, AptLock(stack.channel.spec.apt.suite, {}))


def _gaps(stack: Stack, lock: Lock) -> Iterator[Gap]:
    spec = stack.channel.spec
    for suite in (spec.apt.suite, *spec.apt.extra_suites):
        if suite not in lock.apt.releases or lock.apt.suite != spec.apt.suite:
            yield Gap("suite", suite, Place(stack.channel.source.path))
    for name, place in debian_packages(stack).items():
        if name not in lock.apt.packages:
            yield Gap("Debian package", name, place)
    for name, wanted, place in pip_sets(stack):
        if name not in lock.pip or lock.pip[name].declared != declared_sha256(wanted, spec.python):
            yield Gap("requirement set", name, place)
    if spec.bootstrap.source == "image" and spec.bootstrap.image not in lock.images:
        yield Gap("image", spec.bootstrap.image, Place(stack.channel.source.path))
    for name, archive, place in archives(stack):
        if lock.archives.get(name) != archive:
            yield Gap("archive", name, place)


def debian_packages(stack: Stack) -> dict[str, Place]:
    """Every Debian package that a layer of the stack names → where it does."""
    found: dict[str, Place] = {}
    for node in stack.nodes:
        for listed, names in node.packages.items():
            for name in names:
                found.setdefault(name, _package_place(stack, node, listed, name))
    return dict(sorted(found.items()))


def _package_place(stack: Stack, node: Node, listed: str, name: str) -> Place:
    """The line that names the package: in the user's override, the channel's tuning, or the layer."""
    source = node.layer.source
    edit = node.layer.edit.spec.packages.get(listed) if node.layer.edit else None
    tuning = stack.channel.spec.layers.get(node.name)
    if node.layer.edit and edit and name in edit.append:
        line = node.layer.edit.source.positions.line(
            ("layers", node.name, "packages", listed, "append", edit.append.index(name))
        )
        return Place(node.layer.edit.source.path, line)
    if tuning and name in tuning.packages.get(listed, []):
        index = tuning.packages[listed].index(name)
        line = stack.channel.source.positions.line(("layers", node.name, "packages", listed, index))
        return Place(stack.channel.source.path, line)
    declared = node.layer.spec.packages.get(listed, [])
    index = declared.index(name) if name in declared else 0
    return Place(source.path, source.positions.line(("packages", listed, index)))


def declared_sha256(asked: PipSet, python: str) -> str:
    """sha256 of what a set asks for: the same as long as nobody edits it."""
    words = [sorted(asked.requirements), sorted(asked.exclude), sorted(asked.forbid), python]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def pip_sets(stack: Stack) -> Iterator[tuple[str, PipSet, Place]]:
    seen: dict[str, str] = {}
    for node in stack.nodes:
        for name, wanted in node.layer.spec.pip.items():
            place = Place(node.layer.source.path, node.layer.source.positions.line(("pip", name)))
            if name in seen:
                message = f"'{node.name}' and '{seen[name]}' both have a requirement set '{name}'"
                raise LockError(Problem(message, place, "rename one of them"))
            seen[name] = node.name
            yield name, wanted, place


def archives(stack: Stack) -> Iterator[tuple[str, ArchiveLock, Place]]:
    for node in stack.nodes:
        for name, archive in node.archives.items():
            place = Place(node.layer.source.path, node.layer.source.positions.line(("archives", name)))
            yield name, ArchiveLock(archive.url, archive.sha256, archive.size), place
