"""Write /result/opt/rccl/manifest.json: what the library was made of.

manifest.py VERSION TARGET FUNCTIONS SOURCE PATCH...
"""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

PREFIX = Path("/result/opt/rccl")


def described(path: Path, name: str = "") -> dict[str, str]:
    with path.open("rb") as stream:
        return {"file": name or path.name, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


version, target, functions, source, *patches = sys.argv[1:]
said = subprocess.run(["hipcc", "--version"], capture_output=True, text=True, check=True).stdout
numbers = dict(
    re.findall(r"^NCCL_(MAJOR|MINOR|PATCH) *:= *(\d+)", Path("/build/source/makefiles/version.mk").read_text(), re.M)
)
library = next(path for path in (PREFIX / "lib").glob("librccl.so.*") if not path.is_symlink())
manifest = {
    "name": "rccl",
    "version": version,
    "api": f"NCCL {numbers['MAJOR']}.{numbers['MINOR']}.{numbers['PATCH']}",
    "target": target,
    "functions": functions,
    "source": described(Path(source)),
    "patches": [described(Path(patch)) for patch in patches],
    "compiler": " / ".join(line.strip() for line in said.splitlines()[:2]),
    "library": described(library, f"lib/{library.name}"),
}
(PREFIX / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
