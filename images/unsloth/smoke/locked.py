#!/opt/venv/bin/python
"""The venv holds what the lock names, nothing else, and the versions suit one another."""

import json
import os
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HOME = Path(os.environ["STRIX_SMOKE"])
sys.path.insert(0, str(HOME / "lib"))
import guard  # noqa: E402

# what this layer and those below it bring
layers = json.loads((HOME / "layers.json").read_text())
sets = [name for layer in ("rocm", "pytorch", "unsloth") for name in layers.get(layer, {}).get("sets", ())]
locked = guard.read_locked(HOME / "locked" / f"{name}.txt" for name in sets)
if not locked:
    sys.exit("the lock names no package, so there is nothing to compare with")

# the first of two of the same name is the one that Python imports
seen: dict[str, Distribution] = {}
for distribution in distributions():
    seen.setdefault(canonicalize_name(distribution.metadata["Name"]), distribution)
inside = {name: entry.version for name, entry in seen.items() if str(entry.locate_file("")).startswith("/opt/venv/")}

faults = [
    f"{name} is {inside.get(name, 'missing')}, locked is {locked[name]}"
    for name in locked
    if inside.get(name) != locked[name]
]
faults += [f"{name} {inside[name]} is not in the lock" for name in inside if name not in locked]
absent: set[str] = set()
for name in inside:
    for text in seen[name].requires or ():
        wanted = Requirement(text)
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        have = seen.get(canonicalize_name(wanted.name))
        if have is None:
            absent.add(wanted.name)
        elif not wanted.specifier.contains(have.version, prereleases=True):
            faults.append(f"{name} wants {wanted}, and it is {have.version}")
if faults:
    sys.exit("\n".join(sorted(faults)))

left_out = f"; left out on purpose: {', '.join(sorted(absent))}" if absent else ""
print(f"{len(locked)} distributions are the locked ones and suit one another{left_out}")
