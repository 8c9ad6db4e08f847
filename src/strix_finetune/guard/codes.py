"""Is the target's device code there, and no other's?

ROCm 7.13 and later keep it beside the libraries: a kpack archive for each target, in wheels of its own. Before, and in
PyTorch's own wheels, it is inside the libraries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from .sites import Installed, same_version

# the targets that a file holds executable code for; raises Unreadable
TargetsOf = Callable[[Path], tuple[str, ...]]

_NAMED = re.compile(r"gfx[0-9a-f]{3,4}(?![0-9a-z])")
_WITH_PACKS = ("torch", "torchvision")


class Unreadable(Exception):
    """Device code that cannot be read; the text is a sentence that names the file."""


class _Report(Protocol):
    @property
    def targets(self) -> tuple[str, ...]: ...


def reading(inspect: Callable[[Path], _Report], fault: type[Exception]) -> TargetsOf:
    """`TargetsOf` by our reader of device code, which lies beside this folder under another name in an image."""

    def targets_of(path: Path) -> tuple[str, ...]:
        try:
            return inspect(path).targets
        except fault as error:
            raise Unreadable(str(error)) from error

    return targets_of


def code_faults(path: Path, target: str, targets_of: TargetsOf) -> list[str]:
    """A sentence when the file has no code for the target, or cannot be read."""
    try:
        found = targets_of(path)
    except Unreadable as error:
        return [str(error)]
    if target in found:
        return []
    held = f"code for {', '.join(found)}" if found else "no device code that is there"
    return [f"{path} holds {held}, and none for {target}"]


def pack_faults(have: Sequence[Installed], site: Path, target: str) -> list[str]:
    """What torch and torchvision ask for with the extra `device-<target>` is there, in their own version, and no pack
    of another target. Nothing is asked of wheels that have their device code inside."""
    faults = []
    versions = {item.name: item.version for item in have}
    extra = f"device-{target}"
    for item in have:
        if item.name not in _WITH_PACKS or not any(name.startswith("device-") for name in item.extras()):
            continue
        if extra not in item.extras():
            known = ", ".join(name.removeprefix("device-") for name in item.extras() if name.startswith("device-gfx"))
            faults.append(f"{item} has no device pack for {target}; it has them for {known}")
        for name, version in item.pins(extra).items():
            if name not in versions:
                faults.append(f"{name} {version} is missing: without it {item.name} has no code for {target}")
            elif not same_version(versions[name], version):
                faults.append(f"{name} is {versions[name]}, and {item} asks for {version}")
    for item in have:
        other = _NAMED.search(item.name) if re.match(r"(amd-.*|rocm-sdk)-device-", item.name) else None
        if other and other[0] != target:
            faults.append(f"{item} is code for {other[0]}, and this image is for {target}")
    if (site / "rocm_sdk").is_dir() and f"rocm-sdk-device-{target}" not in versions:
        faults.append(f"rocm-sdk-device-{target} is missing: ROCm's libraries have no code for {target}")
    return faults


def kpack_faults(site: Path, target: str, targets_of: TargetsOf) -> list[str]:
    """Every kpack archive in the site is whole and holds code for the target alone."""
    faults = []
    for path in sorted(site.glob("*/.kpack/*.kpack")):
        if wrong := code_faults(path, target, targets_of):
            faults += wrong
        elif others := [name for name in targets_of(path) if name != target]:
            faults.append(f"{path} also holds code for {', '.join(others)}, which this image has no use for")
    return faults


def torch_code_faults(site: Path, target: str, targets_of: TargetsOf) -> list[str]:
    """torch itself has code for the target: in its kpack archive, or in libtorch_hip.so."""
    packs = sorted((site / "torch/.kpack").glob(f"torch*_{target}.kpack"))
    library = site / "torch/lib/libtorch_hip.so"
    if packs:
        return []  # kpack_faults reads it
    if (site / "torch/_rocm_init.py").is_file():
        return [f"torch/.kpack holds no archive for {target}: every kernel would fail with hipErrorInvalidImage"]
    if not library.is_file():
        return [f"{library} is missing: this torch is no ROCm build"]
    return code_faults(library, target, targets_of)
