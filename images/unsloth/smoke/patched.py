#!/opt/venv/bin/python
"""Each patch of the layer is in: the file that it names holds the text that only the patched file has."""

import os
import re
import sys
import sysconfig
from pathlib import Path

folder = Path(os.environ["STRIX_SMOKE"], "patches", "unsloth")
patches = sorted(folder.iterdir()) if folder.is_dir() else []
if not patches:
    sys.exit("there is no patch to look for, so nothing is proven")

modules = Path(sysconfig.get_path("purelib"))
faults = []
for patch in patches:
    header = patch.read_text("utf-8", "replace").partition("\n--- ")[0]
    markers = re.findall(r"^Marker: ([^:\s]+): (.+)$", header, re.MULTILINE)
    if not markers:
        faults.append(f"{patch.name}: its header has no line 'Marker: FILE: TEXT'")
    for file, text in markers:
        if not (modules / file).is_file():
            faults.append(f"{patch.name}: there is no {file}")
        elif text.strip() not in (modules / file).read_text("utf-8", "replace"):
            faults.append(f"{patch.name}: {file} lacks '{text.strip()}'")
left = [*modules.glob("**/*.orig"), *modules.glob("**/*.rej")]
if faults or left:
    sys.exit("\n".join([*faults, *map(str, left)]))
print(f"patched: {', '.join(patch.stem for patch in patches)}")
