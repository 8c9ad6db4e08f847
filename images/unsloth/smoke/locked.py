#!/opt/venv/bin/python
"""The venv holds what the lock names, nothing else, and the versions suit one another."""

import json
import os
import sys
from pathlib import Path

HOME = Path(os.environ["STRIX_SMOKE"])
sys.path.insert(0, str(HOME / "lib"))
import guard  # noqa: E402

# what this layer and those below it bring
layers = json.loads((HOME / "layers.json").read_text())
sets = [name for layer in ("rocm", "pytorch", "unsloth") for name in layers.get(layer, {}).get("sets", ())]
locked = guard.read_locked(HOME / "locked" / f"{name}.txt" for name in sets)
if not locked:
    sys.exit("the lock names no package, so there is nothing to compare with")

seen = guard.imported()
inside = [item for item in seen.values() if item.site.is_relative_to("/opt/venv")]
faults = guard.version_faults(inside, locked)
faults += [f"{item} is not in the lock" for item in inside if item.name not in locked]
unsuited, absent = guard.requirement_faults(inside, seen)
if faults := [*faults, *unsuited]:
    sys.exit("\n".join(sorted(faults)))

left_out = f"; left out on purpose: {', '.join(sorted(absent))}" if absent else ""
print(f"{len(locked)} distributions are the locked ones and suit one another{left_out}")
