#!/usr/bin/env python3
"""The one torch is the build that was locked, for ROCm where the channel has it, with its Triton and its device code.

Nothing of this needs a GPU, and all of it is asked again in every image built on top: a later step that replaced torch
would import without a word. File contents and device code are read where the wheels are installed, sizes everywhere.
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
declared = json.loads((HOME / "layers.json").read_text())
sets = [name for name in declared["pytorch"]["sets"] if name.startswith("wheels-")]
locked = guard.read_locked(HOME / "locked" / f"{name}.txt" for name in sets)
relaid = Path("/opt/rccl/lib/librccl.so.1").resolve()

# gigabytes: once, and not in each image built on top
thorough = os.environ["STRIX_LAYER"] == "pytorch"
# wherever Python looks, so that a second torch is seen that hides the first
have = [item for folder in dict.fromkeys(sys.path) for item in guard.installed(Path(folder))]
# the last line is what people see first, so the causes stand behind what only follows from them
signs, foreign = [], guard.foreign_libraries([Path("/usr"), Path("/opt")])
causes = guard.version_faults(have, locked)
if sets:
    for item in have:
        if item.name in locked:
            # torch's own RCCL gives way to the one that this project compiled
            ours = [path for path in site.glob("**/librccl.so*") if path.is_symlink() and path.resolve() == relaid]
            signs += guard.record_faults(item, contents=thorough, allowed=ours if item.name == "torch" else ())
    signs += guard.triton_faults(have, site)
    causes += guard.pack_faults(have, site, target)
    if thorough:
        signs += guard.kpack_faults(site, target, guard.reading(inspect, CodeObjectError))
    if thorough and not signs + causes:
        causes += guard.torch_code_faults(site, target, guard.reading(inspect, CodeObjectError))
causes += guard.foreign_distributions(have)
causes += guard.torch_faults(have)
if faults := [*signs, *foreign[0], *causes]:
    sys.exit("\n".join(f"torch: {fault}" for fault in faults))

torch = guard.torch_version()
held = guard.read_locked(path for path in (HOME / "locked").glob("wheels-*.txt"))
faults = guard.build_faults(torch.hip, str(declared["pytorch"]["vars"]["hip"]), torch.rocm, held.get("rocm", ""))
if torch.version != locked.get("torch", torch.version):
    faults.append(f"the module says that it is {torch.version}, locked is {locked['torch']}")
if torch.cuda is not None:
    faults.append(f"this torch is built for CUDA {torch.cuda}")
if faults:
    sys.exit("\n".join(f"torch: {fault}" for fault in faults))
code = f", code for {target} alone" if thorough else ""
build = f"HIP {torch.hip}{code}" if torch.hip else "without GPU support"
print(f"torch {torch.version} ({build}) is the only one; {foreign[1]} files, none for another maker's GPU")
