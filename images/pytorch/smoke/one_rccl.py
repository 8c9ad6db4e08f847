#!/usr/bin/env python3
"""One RCCL is in the image, torch loads that one, and it has code for the target."""

import ctypes
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

HOME = Path(os.environ["STRIX_SMOKE"])
sys.path.insert(0, str(HOME / "lib"))
import guard  # noqa: E402
from codeobject import CodeObjectError, inspect  # noqa: E402

if guard.torch_version().hip is None:
    print("this torch is without GPU support, so no program calls RCCL")
    sys.exit()
target = os.environ["STRIX_TARGET"]
missing = json.loads((HOME / "targets.json").read_text())[target]["missing"].get("rccl", "")
manifest = Path("/opt/rccl/manifest.json")


def mapped(name: str) -> set[Path]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {Path(line.split(maxsplit=5)[-1]) for line in lines if f"/{name}" in line}


import torch  # noqa: E402, F401  what it has loaded is the question

relaid = None
if manifest.exists():
    library = json.loads(manifest.read_text())["library"]
    relaid = guard.Relaid(manifest.parent / library["file"], library["sha256"])
if not mapped("librccl"):
    # torch may leave it for the first process group; the name is then found among what it has loaded, or nowhere
    with suppress(OSError):
        ctypes.CDLL("librccl.so.1")
copies = guard.find_copies([Path("/")])
faults = guard.rccl_faults(
    copies, mapped("librccl"), target, guard.reading(inspect, CodeObjectError), has_code=not missing, relaid=relaid
)
# a library that was compiled with one HIP and loads another has two of each device
runtimes = sorted({path.resolve() for path in mapped("libamdhip64")})
if len(runtimes) != 1:
    faults.append(f"a process with torch has {len(runtimes)} HIP runtimes: {', '.join(map(str, runtimes)) or 'none'}")
if faults:
    sys.exit("\n".join(f"rccl: {fault}" for fault in faults))
(path, *_), *_ = copies.values()
print(f"torch loads {path}, the only one" + (f"; {missing}" if missing else f", with code for {target}"))
