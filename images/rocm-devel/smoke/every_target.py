#!/usr/bin/env python3
"""hipcc compiles and links a program for every target that the definitions name and this compiler knows, and the
program holds code for exactly these, in the right wave size."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(os.environ["STRIX_SMOKE"])
sys.path.insert(0, str(HOME / "lib"))
from codeobject import inspect  # noqa: E402

SOURCE = """\
#include <hip/hip_runtime.h>
#include <cstdio>

__global__ void scaled(float factor, const float* from, float* to, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = factor * sqrtf(from[i]) + __shfl_xor(from[i], 1);
}

int main() {
  int devices = -1;
  hipError_t said = hipGetDeviceCount(&devices);
  std::printf("%d %d\\n", static_cast<int>(said), devices);
  if (devices > 0) scaled<<<1, 1>>>(1.0f, nullptr, nullptr, 0);
  return 0;
}
"""


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"rocm-devel: {' '.join(command[:2])} ends with {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout + done.stderr


targets = {name: entry for name, entry in json.loads((HOME / "targets.json").read_text()).items() if entry["wave_size"]}
clang = sorted(Path("/usr/bin").glob("clang++-[0-9]*"))[-1]
known = set(re.findall(r"gfx\w+", run(str(clang), "--target=amdgcn-amd-amdhsa", "--print-supported-cpus")))
wanted = sorted(targets.keys() & known)
target = os.environ["STRIX_TARGET"]
if target not in wanted:
    sys.exit(f"rocm-devel: this compiler does not know {target}; it knows {', '.join(sorted(known))}")

with tempfile.TemporaryDirectory() as folder:
    source, program = Path(folder, "scaled.hip"), Path(folder, "scaled")
    source.write_text(SOURCE)
    arches = [f"--offload-arch={name}" for name in wanted]
    run("hipcc", "-O1", *arches, str(source), "-o", str(program))
    said = run(str(program)).split()
    found = inspect(program)
if said not in (["100", "0"], ["100", "-1"]) and not Path("/dev/kfd").exists():
    sys.exit(f"rocm-devel: without a GPU the program should see none, and says {' '.join(said)}")
if sorted(found.targets) != wanted:
    sys.exit(f"rocm-devel: compiled for {', '.join(wanted)}, and the program has {', '.join(found.targets)}")
for item in found.code_objects:
    if item.wave_size != targets[item.target]["wave_size"]:
        sys.exit(f"rocm-devel: {item.target} is compiled for waves of {item.wave_sizes}")
unknown = sorted(targets.keys() - known)
print(
    f"hipcc compiles and links for {len(wanted)} targets, {target} among them"
    + (f"; it does not know {', '.join(unknown)}" if unknown else "")
)
