#!/usr/bin/env python3
"""What the library has is called, and what its build left out is refused by a message: RCCL's own entry points are
asked about every reduction, without a GPU (see files/functions.cc)."""

import json
import os
import subprocess
import sys
from pathlib import Path

PREFIX = Path("/opt/rccl")
# the version whose inside files/functions.cc knows
ASKED = "5.4.3"
# by hand, not read from the set that the library was built of
TRAINING = {
    ("allreduce", "sum", "float32"): "DDP's gradients",
    ("allreduce", "sum", "bfloat16"): "DDP's gradients in half of the bytes",
    ("allreduce", "sum", "int64"): "counts of tokens",
    ("allreduce", "sum", "int32"): "DDP's parameters that a step did not use",
    ("allreduce", "max", "uint8"): "booleans, which torch sums so",
    ("allreduce", "max", "float32"): "FSDP's norm of infinity",
    ("allreduce", "min", "int64"): "flags on which all ranks must agree",
    ("allreduce", "avg", "bfloat16"): "FSDP2 in a mesh of two dimensions",
    ("reducescatter", "sum", "float16"): "FSDP with loss scaling",
    ("reducescatter", "avg", "float32"): "FSDP2's gradients",
    ("reducescatter", "premulsum", "bfloat16"): "FSDP2 with a divide factor of its own",
}
LEFT_OUT = (
    ("reduce", "sum", "float32"),
    ("allreduce", "prod", "float32"),
    ("allreduce", "avg", "int32"),
    ("allreduce", "sum", "uint64"),
    ("reducescatter", "max", "float32"),
)


def check(true: object, message: str) -> None:
    if not true:
        sys.exit(f"rccl functions: {message}")


manifest = json.loads((PREFIX / "manifest.json").read_text())
functions = manifest["functions"]
if manifest["version"] != ASKED:
    print(f"not shown: the program that asks is made for RCCL {ASKED}, and this is {manifest['version']}")
    sys.exit(77)
asked = subprocess.run(
    [PREFIX / "bin/rccl-functions"], capture_output=True, text=True, env={**os.environ, "NCCL_DEBUG": "WARN"}
)
check(asked.returncode == 0, f"rccl-functions ends with {asked.returncode}: {asked.stderr.strip()[-300:]}")
lines = [tuple(line.split()) for line in asked.stdout.splitlines() if line.endswith((" yes", " no"))]
has = {line[:3]: line[3] == "yes" for line in lines}
check(len(has) == 3 * 6 * 10, f"{len(has)} answers instead of 180")

for function, use in TRAINING.items():
    check(has[function], f"{' '.join(function)} is missing: {use}")
if functions == "full":
    missing = [" ".join(function) for function, there in has.items() if not there]
    check(not missing, f"the full set lacks {', '.join(missing)}")
if functions == "training":
    for function in LEFT_OUT:
        check(not has[function], f"{' '.join(function)} is not refused, though the build left it out")

# a reason for each refusal, and none for what is there
said = (asked.stdout + asked.stderr).splitlines()
told = [line for line in said if "is not in this library" in line]
refused = sum(not there for there in has.values())
check(len(told) == refused, f"{refused} refusals and {len(told)} reasons")
check(all(f"'{functions}'" in line for line in told), "a reason names another function set than the manifest")
print(f"functions '{functions}': {sum(has.values())} of {len(has)} reductions, the rest is refused by a message")
