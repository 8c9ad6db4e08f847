#!/opt/venv/bin/python
"""The library that bitsandbytes will look for with this torch exists, holds the target's code, and loads.

Importing bitsandbytes would not tell: without a GPU it takes its CPU library, and on a machine with one a library that
does not load only fails when it is called.
"""

import ctypes
import os
import sys
import sysconfig
from pathlib import Path

HOME = Path(os.environ["STRIX_SMOKE"])
sys.path.insert(0, str(HOME / "lib"))
import guard  # noqa: E402
from codeobject import CodeObjectError, inspect  # noqa: E402

target, folder = os.environ["STRIX_TARGET"], Path(sysconfig.get_path("purelib"), "bitsandbytes")

hip = guard.torch_version().hip
if hip:
    # the library finds HIP and the rest of ROCm among what torch has loaded
    import torch  # noqa: F401
name = guard.library_name(hip, [path.name for path in folder.glob("*.so")])
faults = guard.library_faults(
    folder, hip, target, guard.reading(inspect, CodeObjectError), lambda path: ctypes.CDLL(str(path))
)
faults += guard.four_bit_faults(name, target)
if hip and not faults and not guard.stand_in(guard.installed(folder.parent)):
    # what it says itself, so that a newer version with another rule is noticed
    from bitsandbytes.cextension import get_cuda_bnb_library_path
    from bitsandbytes.cuda_specs import CUDASpecs

    pair = tuple(int(number) for number in hip.split(".")[:2])
    says = get_cuda_bnb_library_path(CUDASpecs((0, 0), f"{pair[0]}{pair[1]}", pair)).name
    if says != name:
        faults.append(f"bitsandbytes looks for {says} with HIP {hip}, and not for {name}")
if faults:
    sys.exit("\n".join(f"bitsandbytes: {fault}" for fault in faults))
with_hip = f" with HIP {hip}, holds code for {target}" if hip else ""
print(f"{name} is what bitsandbytes looks for{with_hip}, and loads")
