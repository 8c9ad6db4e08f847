"""What the layers of a stack ask for, with the line that asks, and what a lock lacks of it. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from strix_finetune.errors import Place
from strix_finetune.lockmodel import AptLock, ArchiveLock, Lock, WheelSetLock
from strix_finetune.model import Node, Stack
from strix_finetune.schema import Index, PipSet, WheelSet


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
    for asked in wheel_sets(stack):
        if asked.name not in lock.wheels or lock.wheels[asked.name].declared != asked.sha256:
            yield Gap("set of wheels", asked.name, asked.place)
    for node, name, wanted, place in pip_sets(stack):
        provided = provided_wheels(stack, node, lock.wheels)
        if name not in lock.pip or lock.pip[name].declared != declared_sha256(wanted, spec.python, provided):
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


def declared_sha256(asked: PipSet, python: str, provided: Mapping[str, str] | None = None) -> str:
    """sha256 of what a set asks for: the same as long as nobody edits it. `provided`: as of `provided_wheels`."""
    words: list[object] = [sorted(asked.requirements), sorted(asked.exclude), sorted(asked.forbid), python]
    if provided:
        words.append(sorted(provided.items()))
    return _sha256(words)


def declared_wheels_sha256(asked: WheelSet, index: Index, target: str, python: str) -> str:
    """The same of a set of wheels, which the channel's `index` serves."""
    return _sha256(
        [asked.index, index.url, sorted(expanded(asked, target).requirements), sorted(asked.follow), target, python]
    )


def expanded(asked: WheelSet, target: str) -> WheelSet:
    """The set with the target's id in the place of "{target}"."""
    requirements = [requirement.replace("{target}", target) for requirement in asked.requirements]
    return asked.model_copy(update={"requirements": requirements})


def _sha256(words: list[object]) -> str:
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def pip_sets(stack: Stack) -> Iterator[tuple[Node, str, PipSet, Place]]:
    for node in stack.nodes:
        for name, asked in node.pip.items():
            yield node, name, asked, set_place(stack, node, "pip", name)


@dataclass(frozen=True, slots=True)
class AskedWheels:
    """A set of wheels as a layer of the stack asks for it; `sha256` is of all that decides what it resolves to."""

    name: str
    asked: WheelSet
    index: Index
    sha256: str
    place: Place


def wheel_sets(stack: Stack) -> Iterator[AskedWheels]:
    spec = stack.channel.spec
    for node in stack.nodes:
        for name, asked in node.wheels.items():
            index = spec.indexes[asked.index]
            sha256 = declared_wheels_sha256(asked, index, stack.target.id, spec.python)
            yield AskedWheels(name, asked, index, sha256, set_place(stack, node, "wheels", name))


def provided_wheels(stack: Stack, node: Node, locked: Mapping[str, WheelSetLock]) -> dict[str, str]:
    """Normalized name → version of what sets of wheels bring into the image of this layer, its parents' included."""
    sets = [name for held in stack.lineage(node.name) for name in held.wheels if name in locked]
    return {name: version for held in sets for name, version in locked[held].packages.items()}


def set_place(stack: Stack, node: Node, kind: str, name: str) -> Place:
    """The line that declares a set: the channel's, where it has one of that name, else the layer's."""
    tuning = stack.channel.spec.layers.get(node.name)
    if tuning and name in getattr(tuning, kind):
        source = stack.channel.source
        return Place(source.path, source.positions.line(("layers", node.name, kind, name)))
    source = node.layer.source
    return Place(source.path, source.positions.line((kind, name)))


def archives(stack: Stack) -> Iterator[tuple[str, ArchiveLock, Place]]:
    for node in stack.nodes:
        for name, archive in node.archives.items():
            place = Place(node.layer.source.path, node.layer.source.positions.line(("archives", name)))
            yield name, ArchiveLock(archive.url, archive.sha256, archive.size), place
