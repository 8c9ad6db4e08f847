"""What layers provide, by version, and ceilings: what a layer says of versions that another brings. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from strix_finetune.errors import Place, Problem
from strix_finetune.lockmodel import Lock, normalize
from strix_finetune.model import Node, Stack


def upstream(version: str) -> str:
    """The upstream part of a Debian version, as a Python version: "1:2.14.1+dfsg-1" → "2.14.1".

    Debian writes a version that comes before another with "~": "2.15.0~rc1-1" → "2.15.0rc1".
    """
    from packaging.version import InvalidVersion, Version

    bare = version.partition(":")[2] if re.match(r"\d+:", version) else version
    bare = bare.rpartition("-")[0] if "-" in bare else bare
    bare = re.sub(r"[+.~](?:dfsg|ds|debian|repack|really|git|deb)[0-9.+~a-z-]*$", "", bare)
    for candidate in (bare.replace("~", ""), bare.replace("~", "").partition("+")[0]):
        try:
            return str(Version(candidate))
        except InvalidVersion:
            continue
    numbers = re.match(r"\d+(?:\.\d+)*", bare)
    return numbers[0] if numbers else bare


def public(version: str) -> str:
    """The version of a wheel without its local part: "2.13.0+rocm10.0.0" → "2.13.0"."""
    return version.partition("+")[0]


def provided_version(node: Node, name: str, lock: Lock) -> str:
    """The version of what the layer provides as `name`: of the Debian package, or of the wheel of that name in one of
    its sets. Empty when the lock has neither."""
    package = node.layer.spec.provides.get(name, "")
    if package in lock.apt.packages:
        return lock.apt.packages[package].version
    found = [version for _, version in _wheels(node, name, lock)]
    return public(found[0]) if found else ""


def _wheels(node: Node, name: str, lock: Lock) -> Iterator[tuple[str, str]]:
    """(set, version) of the wheels called `name` in the layer's sets."""
    for wheel_set in node.wheels:
        held = lock.wheels.get(wheel_set)
        if held and normalize(name) in held.packages:
            yield wheel_set, held.packages[normalize(name)]


def broken_ceilings(stack: Stack, lock: Lock) -> Iterator[Problem]:
    """Locked versions that break what a layer demands of them; both are named."""
    for node in stack.nodes:
        yield from _broken(node, stack, lock)


def _broken(node: Node, stack: Stack, lock: Lock) -> Iterator[Problem]:
    from packaging.specifiers import SpecifierSet

    source = node.layer.source
    for name, demand in node.layer.spec.ceilings.items():
        place = Place(source.path, source.positions.line(("ceilings", name)))
        specifier = SpecifierSet(demand)
        for label, version, origin in _versions(name, stack, lock):
            if not specifier.contains(upstream(version), prereleases=True):
                message = f"{label} {version} in {origin} breaks {node.name}'s {name}{demand}"
                yield Problem(message, place, "keep the lock as it was, or raise the ceiling when it works")


def _versions(name: str, stack: Stack, lock: Lock) -> Iterator[tuple[str, str, str]]:
    """(package, version, where it comes from) of everything in the lock that provides `name`."""
    for node in stack.nodes:
        package = node.layer.spec.provides.get(name)
        if package and package in lock.apt.packages:
            yield package, lock.apt.packages[package].version, "the archive"
        for wheel_set, version in _wheels(node, name, lock):
            yield name, public(version), f"the set of wheels '{wheel_set}'"
    for pip_set, locked in lock.pip.items():
        if normalize(name) in locked.packages:
            yield name, locked.packages[normalize(name)], f"the set '{pip_set}'"
