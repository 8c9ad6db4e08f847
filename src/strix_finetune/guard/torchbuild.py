"""Is torch the ROCm build, with the one Triton that belongs to it, and without what only building needs?"""

from __future__ import annotations

import importlib.util
import re
import runpy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .sites import Installed, same_version

_DEVEL = ("_rocm_sdk_devel", "rocm_sdk_devel")


@dataclass(frozen=True, slots=True)
class TorchVersion:
    """What torch/version.py says; `hip`, `rocm` and `cuda` are None where torch is not built for them."""

    version: str
    hip: str | None = None
    rocm: str | None = None
    cuda: str | None = None


def torch_version() -> TorchVersion:
    """The version of the torch that Python would import, without importing it, which takes seconds.

    Raises ModuleNotFoundError when there is none.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("there is no torch")
    said = runpy.run_path(str(Path(spec.submodule_search_locations[0], "version.py")))
    return TorchVersion(said["__version__"], said.get("hip"), said.get("rocm"), said.get("cuda"))


def build_faults(hip: str | None, wanted: str, rocm: str | None = None, locked_rocm: str = "") -> list[str]:
    """`hip`, `rocm`: what torch.version says. `wanted`: "" for a torch without GPU support, "any", or the leading parts
    of the version ("7.15"). `locked_rocm`: the version of ROCm in the lock, where there is one.
    """
    if not wanted:
        return [f"torch is built for HIP {hip}, and this channel's is without GPU support"] if hip else []
    if not hip:
        return ["torch.version.hip is not set: this torch is no ROCm build, so it can use no AMD GPU"]
    faults = []
    if wanted != "any" and not _begins(hip, wanted):
        faults.append(f"torch is built for HIP {hip}, the channel says {wanted}")
    # a build number may follow
    if rocm and locked_rocm and not _begins(rocm, locked_rocm):
        faults.append(f"torch is built for ROCm {rocm}, locked is ROCm {locked_rocm}")
    return faults


def _begins(version: str, wanted: str) -> bool:
    return re.match(rf"{re.escape(wanted)}(?![0-9])", version) is not None


def triton_faults(have: Sequence[Installed], site: Path) -> list[str]:
    """Exactly one distribution brings the module `triton`, with AMD's backend, in the version that torch asks for."""
    owners = [item for item in have if any(entry.path == "triton/__init__.py" for entry in item.record())]
    # installed over one another, the first to be removed takes the files of the other with it
    if len(owners) > 1:
        return [f"the module triton is brought by {' and '.join(map(str, owners))}; there must be one"]
    if not owners:
        return ["there is no triton, which torch.compile and Unsloth's kernels need"]
    (triton,) = owners
    faults = []
    if not (site / "triton/backends/amd/compiler.py").is_file():
        faults.append(f"{triton} has no AMD backend: it is another maker's build")
    for torch in (item for item in have if item.name == "torch"):
        wanted = torch.pins().get(triton.name)
        if wanted is None:
            others = [name for name in torch.pins() if "triton" in name]
            if others:
                faults.append(f"{torch} asks for {others[0]} {torch.pins()[others[0]]}, and {triton} is there")
        elif not same_version(wanted, triton.version):
            faults.append(f"{torch} asks for triton {wanted}, and it is {triton.version}")
    return faults


def devel_faults(have: Iterable[Installed], site: Path) -> list[str]:
    """A sentence for each sign of ROCm's development files: they double the image and serve nobody who trains."""
    faults = [f"{item} is for building only" for item in have if item.name == "rocm-sdk-devel"]
    there = [site / name for name in _DEVEL if (site / name).exists()]
    return faults + [f"{path} holds ROCm's development files, which an image does not need" for path in there]
