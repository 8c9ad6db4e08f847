"""Which AMD GPUs this host has, from the kernel driver's own topology files: no program is run, nothing is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strix_finetune.errors import InputError

TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its architecture, and its render node's name ("renderD128"), empty where the driver does not say it.

    `units`: compute units, by which a small one is told from a large one; 0 where that is not known.
    """

    gfx: str
    render: str
    units: int = 0


def gfx_name(version: int) -> str:
    """The architecture behind KFD's gfx_target_version: major * 10000 + minor * 100 + stepping (hex digits).

    110501 → gfx1151, 90010 → gfx90a. Source: the driver's own documentation of the topology files and LLVM's
    AMDGPU target names, where minor and stepping are one hexadecimal digit each.
    """
    major, minor, step = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{step:x}"


def gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """The GPUs that the kernel driver knows, in its order, which is ROCm's; empty without one."""
    found = []
    for node in sorted((root / TOPOLOGY).glob("*/properties"), key=lambda path: (len(path.parent.name), path)):
        try:
            text = node.read_text("ascii", "replace")
        except OSError:
            continue
        fields = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        number = {key: _number(value) for key, value in fields.items()}
        version, minor = number.get("gfx_target_version", 0), number.get("drm_render_minor", 0)
        units = number.get("simd_count", 0) // max(1, number.get("simd_per_cu", 1))
        if version > 0:
            found.append(Gpu(gfx_name(version), f"renderD{minor}" if minor else "", units))
    return tuple(found)


def found(root: Path = Path("/")) -> Sequence[str]:
    """The architectures of the GPUs, the largest first: what work is meant for, where nobody says it."""
    return [gpu.gfx for gpu in sorted(gpus(root), key=lambda gpu: -gpu.units)]


def choose(there: Sequence[Gpu], target: str, wanted: Sequence[int] = ()) -> tuple[Gpu, ...]:
    """The GPUs that a container for `target` gets: the `wanted` ones, numbered from 0, else all that the image is for.

    Libraries have no code for the others, such as the small one of a desktop's processor, and crash on them. Where
    none is of the target's kind all are given: the image may have code for a relative. Raises InputError for a number
    that no GPU has.
    """
    if not wanted:
        alike = tuple(gpu for gpu in there if gpu.gfx == target)
        return alike or tuple(there)
    for number in wanted:
        if not 0 <= number < len(there):
            has = ", ".join(f"{place} ({gpu.gfx})" for place, gpu in enumerate(there)) or "none"
            raise InputError(f"there is no GPU {number}", cure=f"this host has {has}")
    return tuple(there[number] for number in dict.fromkeys(wanted))


def devices(root: Path = Path("/"), chosen: Sequence[Gpu] = ()) -> tuple[str, ...]:
    """The device files that a container needs, or nothing when the compute device is missing.

    Of the `chosen` GPUs alone, where there are any; the kernel hides the others from who cannot open their files.
    """
    kfd = root / "dev/kfd"
    if not kfd.exists():
        return ()
    if chosen and all(gpu.render for gpu in chosen):
        return (str(kfd), *(str(root / "dev/dri" / gpu.render) for gpu in chosen))
    render = sorted(str(path) for path in (root / "dev/dri").glob("renderD*"))
    return (str(kfd), *render)


def groups(files: Sequence[str]) -> tuple[str, ...]:
    """The numeric groups that own the device files: names would be looked up inside the image."""
    return tuple(sorted({str(Path(path).stat().st_gid) for path in files if Path(path).stat().st_gid}))


def open_to_all(files: Sequence[str]) -> bool:
    """Whether everybody may read and write the device files, whatever groups they are in."""
    return all(Path(path).stat().st_mode & 0o006 == 0o006 for path in files)


def _number(text: str) -> int:
    return int(text) if text.strip().isdigit() else 0
