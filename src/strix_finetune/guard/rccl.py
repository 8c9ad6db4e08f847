"""One RCCL, for the target, and the one that torch loads."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .codes import TargetsOf, code_faults

# kernel file systems hold nothing of the image, and /run the tests themselves
_SKIPPED = ("/proc", "/sys", "/dev", "/run")


@dataclass(frozen=True, slots=True)
class Relaid:
    """The library that this project built, when it did: every other one must lead to it."""

    path: Path
    sha256: str


def find_copies(roots: Iterable[Path]) -> dict[str, list[Path]]:
    """sha256 → the real files of that content which are called librccl; links are followed where they are met."""
    copies: dict[str, list[Path]] = {}
    seen: set[Path] = set()
    for root in roots:
        for folder, names, files in os.walk(root):
            names[:] = [name for name in names if str(Path(folder, name)) not in _SKIPPED]
            for name in files:
                path = Path(folder, name)
                if name.startswith(("librccl.so", "librccl-")) and path.exists() and path.resolve() not in seen:
                    seen.add(path.resolve())
                    with path.open("rb") as stream:
                        digest = hashlib.file_digest(stream, "sha256").hexdigest()
                    copies.setdefault(digest, []).append(path.resolve())
    return copies


def rccl_faults(
    copies: Mapping[str, Sequence[Path]],
    loaded: Iterable[Path],
    target: str,
    targets_of: TargetsOf,
    *,
    has_code: bool = True,
    relaid: Relaid | None = None,
) -> list[str]:
    """`loaded`: what a process has mapped that imported torch. `has_code`: whether ROCm has an RCCL for the target."""
    paths = sorted(path for found in copies.values() for path in found)
    if not paths:
        return ["there is no librccl.so"]
    if len(copies) > 1:
        return [f"there are {len(copies)} librccl that differ: {', '.join(map(str, paths))}; a program finds only one"]
    faults = []
    mapped = sorted({path.resolve() for path in loaded})
    if not mapped:
        faults.append(f"torch does not load {paths[0]}, nor any other librccl")
    if len(mapped) > 1:
        faults.append(f"torch loads more than one librccl: {', '.join(map(str, mapped))}")
    faults += [f"torch loads {path}, which was not found in the image" for path in mapped if path not in paths]
    if relaid and relaid.sha256 not in copies:
        faults.append(f"{paths[0]} is not {relaid.path}, which this project built for {target}")
    if has_code:
        faults += code_faults(paths[0], target, targets_of)
    return faults
