#!/usr/bin/env python3
"""HIP loads, is of one release, says "no GPU" instead of crashing, and compiles a kernel for the target at run time.

The last needs neither a GPU nor a compiler: comgr is one, and its result is read by our own reader of device code.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

HOME = Path(os.environ["STRIX_SMOKE"])
sys.path.insert(0, str(HOME / "lib"))
import guard  # noqa: E402
from codeobject import inspect  # noqa: E402

NO_DEVICE = 100
# what torch loads of ROCm's wheels, HIP and its run-time compiler first
PRELOADED = ("amdhip64", "hiprtc", "amd_comgr", "hsa-runtime64", "hipblas", "hipblaslt", "rccl", "miopen")
KERNEL = b"""
extern "C" __global__ void scaled(float factor, const float* from, float* to, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = factor * sqrtf(from[i]) + __shfl_xor(from[i], 1);
}
"""


def check(true: bool, message: str) -> None:
    if not true:
        sys.exit(f"rocm: {message}")


def debian_release() -> str:
    """ROCm's release by Debian's packages, which must all be of it and as locked."""
    locked = dict(line.split("=", 1) for line in (HOME / "locked/apt.txt").read_text().split())
    release = ".".join(re.split(r"[.+~-]", locked["libamdhip64-7"].rpartition(":")[2])[:3])
    for package in ("libamd-comgr3", "libhsa-runtime64-1", "librocm-smi64-7"):
        check(release in locked[package], f"{package} {locked[package]} is not of ROCm {release}")
    installed = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}\n"], capture_output=True, text=True)
    versions = dict(line.split() for line in installed.stdout.splitlines())
    wrong = [name for name in locked if name in versions and versions[name] != locked[name]]
    check(not wrong, f"not as locked: {', '.join(f'{name} {versions[name]}' for name in wrong)}")
    return release


if any(name.startswith("wheels-") for name in json.loads((HOME / "layers.json").read_text())["rocm"]["sets"]):
    have = guard.installed(Path(sysconfig.get_path("purelib")))
    import rocm_sdk

    release, libraries = rocm_sdk.__version__, [Path(path) for path in rocm_sdk.find_libraries(*PRELOADED)]
    hip_path, hiprtc_path = map(str, libraries[:2])
    check(release == next(item.version for item in have if item.name == "rocm"), f"rocm_sdk says {release}")
else:
    have, release = [], debian_release()
    every = sorted(Path("/usr/lib/x86_64-linux-gnu").glob("lib*.so.*"))
    libraries = [path for path in every if re.match(r"lib(amd|hip|hsa|roc|LLVM)", path.name) and not path.is_symlink()]
    hip_path, hiprtc_path = "libamdhip64.so.7", "libhiprtc.so.7"

for library in libraries:
    told = subprocess.run(["ldd", str(library)], capture_output=True, text=True).stdout
    missing = re.findall(r"(\S+) => not found", told)
    check(not missing, f"{library} lacks {', '.join(missing)}")

hip = ctypes.CDLL(hip_path)
if stub := guard.stand_in(have):
    print(f"not shown: HIP {release} loads, and {stub} is a stub that compiles nothing")
    sys.exit(77)
number, count = ctypes.c_int(), ctypes.c_int(-1)
check(hip.hipRuntimeGetVersion(ctypes.byref(number)) == 0, "hipRuntimeGetVersion fails")
major, minor = divmod(number.value // 100000, 100)
# ROCm 10.0 has HIP 7.15: there the versions are compared by torch
check(have or release.startswith(f"{major}.{minor}."), f"HIP says {major}.{minor} and the package {release}")
said = hip.hipGetDeviceCount(ctypes.byref(count))
check(said in (0, NO_DEVICE), f"hipGetDeviceCount ends with {said}")

target = os.environ["STRIX_TARGET"]
hiprtc = ctypes.CDLL(hiprtc_path)
program = ctypes.c_void_p()
check(hiprtc.hiprtcCreateProgram(ctypes.byref(program), KERNEL, b"scaled.hip", 0, None, None) == 0, "no program")
options = (ctypes.c_char_p * 1)(f"--offload-arch={target}".encode())
result = hiprtc.hiprtcCompileProgram(program, 1, options)
size = ctypes.c_size_t()
hiprtc.hiprtcGetProgramLogSize(program, ctypes.byref(size))
log = ctypes.create_string_buffer(size.value + 1)
hiprtc.hiprtcGetProgramLog(program, log)
check(result == 0, f"compiling for {target} at run time fails: {log.value.decode(errors='replace').strip()[:300]}")
hiprtc.hiprtcGetCodeSize(program, ctypes.byref(size))
code = ctypes.create_string_buffer(size.value)
hiprtc.hiprtcGetCode(program, code)
path = Path("/tmp/scaled.hsaco")
path.write_bytes(code.raw)
found = inspect(path)
path.unlink()
wave = json.loads((HOME / "targets.json").read_text())[target]["wave_size"]
check(found.targets == (target,), f"asked for {target}, compiled for {', '.join(found.targets) or 'nothing'}")
waves = [item.wave_size for item in found.code_objects]
check(waves == [wave], f"{target} runs waves of {wave}, the compiled kernel of {waves}")
print(
    f"ROCm {release} (HIP {major}.{minor}): loads, compiles for {target} (wave {wave}) at run time;"
    f" devices: {max(count.value, 0)}"
)
