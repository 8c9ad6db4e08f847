#!/usr/bin/env python3
"""ROCm's wheels are the locked ones, whole, for the image's target alone, and without what only building needs.

Whatever is built on top: the size of every file is compared. Contents and device code are read in the layer itself.
"""

import json
import os
import sys
import sysconfig
from pathlib import Path

HOME = Path(os.environ["STRIX_SMOKE"])
sys.path.insert(0, str(HOME / "lib"))
import guard  # noqa: E402
from codeobject import CodeObjectError, inspect  # noqa: E402

target, site = os.environ["STRIX_TARGET"], Path(sysconfig.get_path("purelib"))
sets = [name for name in json.loads((HOME / "layers.json").read_text())["rocm"]["sets"] if name.startswith("wheels-")]
if not sets:
    print("ROCm comes as packages of Debian's on this channel")
    sys.exit()

# gigabytes: once, and not in each image built on top
thorough = os.environ["STRIX_LAYER"] == "rocm"
have = guard.installed(site)
locked = guard.read_locked(HOME / "locked" / f"{name}.txt" for name in sets)
faults = guard.version_faults(have, locked)
for item in have:
    if item.name in locked:
        faults += guard.record_faults(item, contents=thorough)
faults += guard.devel_faults(have, site)
faults += guard.pack_faults([item for item in have if item.name.startswith("rocm")], site, target)
if thorough:
    faults += guard.kpack_faults(site, target, guard.reading(inspect, CodeObjectError))
if faults:
    sys.exit("\n".join(f"rocm: {fault}" for fault in faults))
archives = len(list(site.glob("*/.kpack/*.kpack")))
code = f"; {archives} kpack archives, all for {target} alone" if thorough else ""
print(f"{len(locked)} packages are the locked ones and whole{code}")
