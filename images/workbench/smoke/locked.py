#!/opt/venv/bin/python
"""The set of the lock is in the venv in its versions, and everything that it wants is in the image."""

import json
import os
import sys
from pathlib import Path

HOME = Path(os.environ["STRIX_SMOKE"])
sys.path.insert(0, str(HOME / "lib"))
import guard  # noqa: E402

sets = json.loads((HOME / "layers.json").read_text())["workbench"]["sets"]
locked = guard.read_locked(HOME / "locked" / f"{name}.txt" for name in sets)
if "jupyterlab" not in locked:
    sys.exit("the lock names no JupyterLab, so there is nothing to compare with")

seen = guard.imported()
own = [item for name, item in seen.items() if name in locked]
unsuited, absent = guard.requirement_faults(own, seen)
lacking = [f"{name} is missing" for name in absent - {"debugpy", "setuptools"}]
if faults := [*guard.version_faults(own, locked), *unsuited, *lacking]:
    sys.exit("\n".join(sorted(faults)))
print(f"{len(locked)} distributions are the locked ones, and what they want is there (but the debugger's back end)")
