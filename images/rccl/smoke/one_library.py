#!/usr/bin/env python3
"""Whatever was built on top: one librccl, for the image's target alone, which is also the one that programs find; and
no compiler but one that a layer asks for (Triton needs the system's)."""

import ctypes
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(os.environ["STRIX_SMOKE"], "lib")))
from codeobject import CodeObjectError, inspect

COMPILERS = ("amdclang", "c++", "cc", "clang", "clang++", "g++", "gcc", "hipcc", "ld", "ld.lld", "nvcc")
VERSIONED = ("clang-", "clang++-", "gcc-", "g++-", "x86_64-linux-gnu-g")
# what a layer's package list may ask for, and what then is there
ASKED = {"g++": ("c++", "g++"), "gcc": ("cc", "gcc", "ld")}
# kernel file systems hold nothing of the image
SKIPPED = ("/proc", "/sys", "/dev", "/run")


def check(true: object, message: str) -> None:
    if not true:
        sys.exit(f"one library: {message}")


found: dict[str, Path] = {}
packages = {line.split("=")[0] for line in Path(os.environ["STRIX_SMOKE"], "locked/apt.txt").read_text().split()}
allowed = {name for package, names in ASKED.items() if package in packages for name in names}
compilers = [path for name in COMPILERS if name not in allowed and (path := shutil.which(name))]
for folder, names, files in os.walk("/"):
    names[:] = [name for name in names if str(Path(folder, name)) not in SKIPPED]
    for name in files:
        path = Path(folder, name)
        if name.startswith(("librccl.so", "librccl-", "libnccl.so")) and not path.is_symlink():
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if digest in found:
                check(False, f"{found[digest]} is there twice, also as {path}")
            found[digest] = path
        elif folder.endswith("/bin") and name.startswith(VERSIONED if not allowed else VERSIONED[:2]):
            compilers.append(str(path))
paths = sorted(map(str, found.values()))
check(found, "there is no librccl.so")
check(len(found) == 1, f"there are libraries that differ: {', '.join(paths)}; a program finds only one of them")
digest, path = next(iter(found.items()))
manifest = json.loads(Path("/opt/rccl/manifest.json").read_text())
check(digest == manifest["library"]["sha256"], f"{path} is not the library that this project built")
target = os.environ["STRIX_TARGET"]
try:
    targets = inspect(path).targets
except CodeObjectError as error:
    sys.exit(f"one library: {error}")
check(targets == (target,), f"{path} holds code for {', '.join(targets) or 'no target'}, not for {target} alone")
ctypes.CDLL("librccl.so.1")
loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "librccl" in line}
check(loaded == {str(path)}, f"programs find librccl.so.1 at {', '.join(loaded)}")
check(not compilers, f"a compiler is in the image: {', '.join(compilers)}")
kept = f"no compiler but {', '.join(sorted(allowed))}" if allowed else "no compiler"
print(f"{path} is the only librccl, and holds code for {target} alone; {kept} is in the image")
