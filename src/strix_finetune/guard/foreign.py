"""What was made for other GPUs, or stands in the way of the one torch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from .sites import Installed

_DISTRIBUTIONS = re.compile(r"(nvidia|cuda|cupy|intel-(sycl|opencl|cmplr))(-.*)?|cupy.*|.*-triton-xpu|xformers")
_LIBRARIES = re.compile(
    r"lib(cuda|cudart|cublas\w*|cudnn\w*|cufft\w*|cufile|cupti|curand|cusolver\w*|cusparse\w*|nccl|nvrtc\w*|nvjitlink"
    r"|nvshmem\w*|nvtoolsext|nvidia-\w+|torch_cuda\w*|c10_cuda|sycl|\w+_(cuda|xpu)\d+)[-\w]*\.so(\.\d+)*$",
    re.IGNORECASE,
)
# Triton is built with the backends of several makers in one wheel, AMD's own build too
_TRITON = "triton/backends/nvidia"


def foreign_distributions(have: Iterable[Installed]) -> list[str]:
    """A sentence for each distribution that is for another maker's GPU."""
    return [f"{item} is made for other GPUs" for item in have if _DISTRIBUTIONS.fullmatch(item.name)]


def foreign_libraries(roots: Iterable[Path]) -> tuple[list[str], int]:
    """A sentence for each library of another maker's below `roots`, and how many files were looked at."""
    faults, count = [], 0
    for root in roots:
        for folder, _, files in os.walk(root):
            count += len(files)
            if _TRITON not in folder:
                faults += [f"{folder}/{name} is made for other GPUs" for name in files if _LIBRARIES.match(name)]
    return faults, count


def torch_faults(have: Iterable[Installed]) -> list[str]:
    """A sentence when there is not exactly one torch."""
    found = [item for item in have if item.name == "torch"]
    if len(found) == 1:
        return []
    if not found:
        return ["there is no torch"]
    return [f"there is not one torch but {len(found)}: {', '.join(f'{item.version} in {item.site}' for item in found)}"]
