#!/opt/venv/bin/python
"""The set of the lock is in the venv in its versions, and everything that it wants is in the image."""

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

sets = json.loads((HOME / "layers.json").read_text())["workbench"]["sets"]
locked = guard.read_locked(HOME / "locked" / f"{name}.txt" for name in sets)
if "jupyterlab" not in locked:
    sys.exit("the lock names no JupyterLab, so there is nothing to compare with")

# the first of two of the same name is the one that Python imports
seen: dict[str, Distribution] = {}
for distribution in distributions():
    seen.setdefault(canonicalize_name(distribution.metadata["Name"]), distribution)
faults = [
    f"{name} is {seen[name].version if name in seen else 'missing'}, locked is {version}"
    for name, version in locked.items()
    if name not in seen or seen[name].version != version
]
absent: set[str] = set()
for name in locked.keys() & seen.keys():
    for text in seen[name].requires or ():
        wanted = Requirement(text)
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        have = seen.get(canonicalize_name(wanted.name))
        if have is None:
            absent.add(wanted.name)
        elif not wanted.specifier.contains(have.version, prereleases=True):
            faults.append(f"{name} wants {wanted}, and it is {have.version}")
faults += [f"{name} is missing" for name in absent - {"debugpy", "setuptools"}]
if faults:
    sys.exit("\n".join(sorted(faults)))
print(f"{len(locked)} distributions are the locked ones, and what they want is there (but the debugger's back end)")
