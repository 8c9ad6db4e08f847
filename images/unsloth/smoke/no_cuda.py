#!/opt/venv/bin/python
"""No package and no library for other makers' GPUs is in the image, and there is one torch only."""

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

PACKAGES = re.compile(
    r"(nvidia|cuda|cupy|pytorch-triton-xpu|intel-(sycl|opencl|cmplr))([-_.].*|$)|xformers$", re.IGNORECASE
)
LIBRARIES = re.compile(
    r"lib(cuda|cudart|cublas\w*|cudnn\w*|cufft\w*|cufile|cupti|curand|cusolver\w*|cusparse\w*|nccl|nvrtc\w*|nvjitlink"
    r"|nvshmem\w*|nvtoolsext|nvidia-\w+|torch_cuda\w*|c10_cuda|sycl|\w+_(cuda|xpu)\d+)[-\w]*\.so(\.\d+)*$",
    re.IGNORECASE,
)

found: list[str] = []
torches: set[str] = set()
for distribution in distributions():
    name = distribution.metadata["Name"]
    if PACKAGES.match(name):
        found.append(f"{name} {distribution.version}")
    if name.lower() == "torch":
        torches.add(str(distribution.locate_file("torch")))
count = 0
for root in (Path("/usr"), Path("/opt")):
    for folder, _, files in root.walk():
        count += len(files)
        found += [str(folder / file) for file in files if LIBRARIES.match(file)]

if found:
    sys.exit(f"made for other GPUs, and in the image all the same: {', '.join(found[:8])} ({len(found)} in all)")
if len(torches) != 1:
    sys.exit(f"there is not one torch but {len(torches)}: {', '.join(sorted(torches))}")
print(f"no CUDA and no SYCL in {count} files; the only torch is {torches.pop()}")
