"""Installed versions against the lock."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from .sites import Installed, normalize, same_version

_LINE = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)


def read_locked(files: Iterable[Path]) -> dict[str, str]:
    """Normalized name → version of every requirement in hash-locked texts."""
    found: dict[str, str] = {}
    for file in files:
        found |= {normalize(name): version for name, version in _LINE.findall(file.read_text("utf-8"))}
    return found


def version_faults(have: Iterable[Installed], locked: Mapping[str, str]) -> list[str]:
    """What is missing, of another version, or there twice. What the lock does not name is nobody's business here."""
    versions: dict[str, list[str]] = {}
    for item in have:
        versions.setdefault(item.name, []).append(item.version)
    faults = []
    for name, version in locked.items():
        found = versions.get(name, [])
        if not found:
            faults.append(f"{name} is missing, locked is {version}")
        elif len(found) > 1:
            faults.append(f"{name} is installed {len(found)} times: {', '.join(found)}; locked is {version}")
        elif not same_version(found[0], version):
            faults.append(f"{name} is {found[0]}, locked is {version}")
    return faults
