"""The library that bitsandbytes will look for: does it exist, hold the target's code, and load?

Importing bitsandbytes does not tell: without a GPU it takes its CPU library, and a library that does not load becomes
an object that fails when it is called. The choice below is that of bitsandbytes 0.50.2 (cextension.py): the version of
HIP exactly, else the highest before it, else the lowest after it, all of the same major version; none of another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from .codes import TargetsOf, code_faults

_LIBRARY = re.compile(r"libbitsandbytes_rocm(\d)(\d+)\.so")


def library_name(hip: str | None, present: Iterable[str]) -> str:
    """The file among `present` that is looked for; when none fits, the name that it would complain about.

    `hip`: torch.version.hip ("7.15.26333"), None without GPU support.
    """
    if not hip:
        return "libbitsandbytes_cpu.so"
    major, minor = (int(number) for number in hip.split(".")[:2])
    there = {(int(match[1]), int(match[2])): name for name in present if (match := _LIBRARY.fullmatch(name))}
    same = {version: name for version, name in there.items() if version[0] == major}
    before = [version for version in same if version <= (major, minor)]
    if before:
        return same[max(before)]
    return same[min(same)] if same else f"libbitsandbytes_rocm{major}{minor}.so"


def library_faults(
    folder: Path, hip: str | None, target: str, targets_of: TargetsOf, load: Callable[[Path], object]
) -> list[str]:
    """`folder`: the package. `load`: dlopen, in a process that has imported torch; it raises OSError."""
    present = sorted(path.name for path in folder.glob("libbitsandbytes_*.so"))
    path = folder / library_name(hip, present)
    if not path.is_file():
        held = ", ".join(name.removeprefix("libbitsandbytes_").removesuffix(".so") for name in present) or "none"
        return [f"bitsandbytes looks for {path.name} with HIP {hip}, and has {held}: 4-bit and 8-bit would fail"]
    if hip and (faults := code_faults(path, target, targets_of)):
        return faults
    try:
        load(path)
    except OSError as error:
        return [f"{path} does not load: {error}"]
    return []


def four_bit_faults(name: str, target: str) -> list[str]:
    """The library of ROCm 6.4 was miscompiled for RDNA 3 (bitsandbytes issue 2087): NF4 gives wrong numbers there.

    A compiler of that time turned a move between lanes into float → int → float; the libraries of 7.0 and later, made
    by newer ones, have none of these.
    """
    if target.startswith("gfx11") and _LIBRARY.fullmatch(name) and re.fullmatch(r"libbitsandbytes_rocm6\d+\.so", name):
        return [f"{name} computes 4-bit wrongly on {target}: take a torch for ROCm 7.0 or later"]
    return []
