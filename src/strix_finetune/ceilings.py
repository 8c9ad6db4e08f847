"""Ceilings: what a layer says of versions that another layer brings, held against the lock. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from strix_finetune.errors import LockError, Place, Problem
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


def check_ceilings(stack: Stack, lock: Lock) -> None:
    """Raise LockError when a locked version breaks what a layer demands of it; both are named."""
    problems = [problem for node in stack.nodes for problem in _broken(node, stack, lock)]
    if problems:
        raise LockError(problems)


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
    for pip_set, locked in lock.pip.items():
        version = locked.packages.get(normalize(name))
        if version:
            yield name, version, f"the set '{pip_set}'"
