#!/usr/bin/env python3
"""The library is what its manifest and the definitions say: source, patches, target, wave size; and it loads."""

import ctypes
import hashlib
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

HOME, PREFIX = Path(os.environ["STRIX_SMOKE"]), Path("/opt/rccl")
sys.path.insert(0, str(HOME / "lib"))
from codeobject import elf, inspect  # noqa: E402
from codeobject.limits import Ledger, Limits  # noqa: E402
from codeobject.source import FileSource  # noqa: E402

NEEDED, SONAME, RPATH, RUNPATH = 1, 14, 15, 29


def check(true: object, message: str) -> None:
    if not true:
        sys.exit(f"rccl: {message}")


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sections(path: Path) -> dict[str, bytes]:
    ledger = Ledger(Limits())
    with FileSource(str(path), ledger) as source:
        listed = elf.read_sections(source, elf.read_header(source), ledger)
        wanted = (".dynamic", ".dynstr", ".rccl_patches")
        return {item.name: source.read(item.offset, item.size) for item in listed if item.name in wanted}


# what was declared
target = os.environ["STRIX_TARGET"]
wave = json.loads((HOME / "targets.json").read_text())[target]["wave_size"]
declared = json.loads((HOME / "layers.json").read_text())["rccl"]
manifest = json.loads((PREFIX / "manifest.json").read_text())
for name in ("version", "functions"):
    check(manifest[name] == declared["vars"][name], f"{name} {manifest[name]}, declared {declared['vars'][name]}")
check(manifest["target"] == target, f"the manifest says {manifest['target']}")
check(manifest["source"]["sha256"] == declared["archives"]["source"]["sha256"], "another source than was locked")
patches = {patch["file"]: patch["sha256"] for patch in manifest["patches"]}
check(list(patches) == declared["patches"], f"patches {', '.join(patches)}, declared {', '.join(declared['patches'])}")
for name, digest in patches.items():
    check(digest == sha256(HOME / "patches/rccl" / name), f"{name} is not the patch that was declared")

# what is there
library = PREFIX / manifest["library"]["file"]
check(sha256(library) == manifest["library"]["sha256"], f"{library} is not the library of the manifest")
held = sections(library)
marks = {name for word in held.get(".rccl_patches", b"").split(b"\0") for name in word.decode().split(";") if name}
names = {name.removesuffix(".patch") for name in patches}
unmarked, extra = sorted(names - marks), sorted(marks - names)
check(not unmarked, f"{library} bears no mark of {', '.join(unmarked)}")
check(not extra, f"{library} bears marks of {', '.join(extra)}, which no declared patch leaves")

found = inspect(library)
check(
    found.targets == (target,),
    f"{library} holds code for {', '.join(found.targets) or 'no target'}, not {target} alone",
)
check(not found.warnings, f"{library}: {'; '.join(found.warnings)}")
waves = {size for item in found.code_objects for size in item.wave_sizes}
check(waves == {wave}, f"{target} runs waves of {wave}, {library} is compiled for {sorted(waves)}")

entries = list(struct.iter_unpack("<QQ", held[".dynamic"]))
text = {
    tag: [held[".dynstr"][at:].split(b"\0")[0].decode() for kind, at in entries if kind == tag]
    for tag in (NEEDED, SONAME, RPATH, RUNPATH)
}
check(text[SONAME] == ["librccl.so.1"], f"the library calls itself {text[SONAME]}")
check(not text[RPATH] + text[RUNPATH], f"the library looks for others in {text[RPATH] + text[RUNPATH]}")
check("libamdhip64.so.7" in text[NEEDED], f"the library is not linked with HIP 7 but with {', '.join(text[NEEDED])}")
told = subprocess.run(["ldd", str(library)], capture_output=True, text=True).stdout
missing = re.findall(r"(\S+) => not found", told)
check(not missing, f"{library} lacks {', '.join(missing)}")

# how programs find it
rccl = ctypes.CDLL("librccl.so.1")
loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "librccl" in line}
check(loaded == {str(library)}, f"librccl.so.1 is found at {', '.join(loaded)}")
number = ctypes.c_int()
check(rccl.ncclGetVersion(ctypes.byref(number)) == 0, "ncclGetVersion fails")
major, minor, patch = number.value // 10000, number.value // 100 % 100, number.value % 100
check(manifest["api"] == f"NCCL {major}.{minor}.{patch}", f"ncclGetVersion says {number.value}, not {manifest['api']}")
size = sum(item.code_size for item in found.code_objects)
print(
    f"RCCL {manifest['version']} ({manifest['api']}) with {len(patches)} patches: code for {target} alone,"
    f" {size / 1e6:.1f} MB, wave {wave}, functions '{manifest['functions']}'"
)
