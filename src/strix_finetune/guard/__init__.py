"""Is what an image holds the ROCm build that was locked, all of it and nothing else? Asked without a GPU.

Pure functions over a site-packages folder; each returns sentences that name what is wrong, none when all is well. The
smoke tests call them inside the image, where this folder lies as plain files: only the standard library is needed (and
packaging by `requirements`), and the reader of device code is handed in (`TargetsOf`).
"""

from .bitsandbytes import four_bit_faults, library_faults, library_name
from .codes import TargetsOf, Unreadable, kpack_faults, pack_faults, reading, torch_code_faults
from .foreign import foreign_distributions, foreign_libraries, torch_faults
from .locked import read_locked, version_faults
from .rccl import Relaid, find_copies, rccl_faults
from .records import record_faults
from .requirements import requirement_faults
from .sites import Installed, imported, installed, stand_in
from .torchbuild import TorchVersion, build_faults, devel_faults, torch_version, triton_faults

__all__ = [
    "Installed",
    "Relaid",
    "TargetsOf",
    "TorchVersion",
    "Unreadable",
    "build_faults",
    "devel_faults",
    "find_copies",
    "foreign_distributions",
    "foreign_libraries",
    "four_bit_faults",
    "imported",
    "installed",
    "kpack_faults",
    "library_faults",
    "library_name",
    "pack_faults",
    "rccl_faults",
    "read_locked",
    "reading",
    "record_faults",
    "requirement_faults",
    "stand_in",
    "torch_code_faults",
    "torch_faults",
    "torch_version",
    "triton_faults",
    "version_faults",
]
