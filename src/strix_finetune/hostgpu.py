"""Which AMD GPU this host has, from the kernel driver's own topology files: no program is run, nothing is opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"


def gfx_name(version: int) -> str:
    """The architecture behind KFD's gfx_target_version: major * 10000 + minor * 100 + stepping (hex digits).

    110501 → gfx1151, 90010 → gfx90a. Source: the driver's own documentation of the topology files and LLVM's
    AMDGPU target names, where minor and stepping are one hexadecimal digit each.
    """
    major, minor, step = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{step:x}"


def found(root: Path = Path("/")) -> Sequence[str]:
    """The architectures of the GPUs that the kernel driver knows, in its order; empty without one."""
    names = []
    for node in sorted((root / TOPOLOGY).glob("*/properties"), key=lambda path: path.parent.name):
        try:
            text = node.read_text("ascii", "replace")
        except OSError:
            continue
        for line in text.splitlines():
            key, _, value = line.partition(" ")
            if key == "gfx_target_version" and value.strip().isdigit() and int(value) > 0:
                names.append(gfx_name(int(value)))
    return names


def devices(root: Path = Path("/")) -> tuple[str, ...]:
    """The device files that a container needs, or nothing when the compute device is missing."""
    kfd = root / "dev/kfd"
    if not kfd.exists():
        return ()
    render = sorted(str(path) for path in (root / "dev/dri").glob("renderD*"))
    return (str(kfd), *render)


def groups(files: Sequence[str]) -> tuple[str, ...]:
    """The numeric groups that own the device files: names would be looked up inside the image."""
    return tuple(sorted({str(Path(path).stat().st_gid) for path in files if Path(path).stat().st_gid}))


def open_to_all(files: Sequence[str]) -> bool:
    """Whether everybody may read and write the device files, whatever groups they are in."""
    return all(Path(path).stat().st_mode & 0o006 == 0o006 for path in files)
