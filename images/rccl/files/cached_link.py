"""Link, or take the same link from the cache: cached_link.py COMPILER ARGUMENT...

Linking is where device code is made, so it takes most of the time of a build, and ccache leaves it alone. The key is
everything that goes in: the command, the compiler's packages (LINK_COMPILER) and the content of every object.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

KEPT = 8


def key(command: list[str]) -> str:
    hasher = hashlib.sha256("\0".join([os.environ["LINK_COMPILER"], *command]).encode())
    for word in command:
        if word.endswith(".o"):
            hasher.update(Path(word).read_bytes())
    return hasher.hexdigest()


def age(path: Path) -> float:
    """When it was used last; 0 for what another build has just removed."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def main(command: list[str]) -> int:
    output = Path(command[command.index("-o") + 1])
    if not output.name.startswith("librccl."):
        # a probe of cmake
        return subprocess.call(command)
    folder = Path(os.environ["LINK_CACHE"])
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / key(command)
    if kept.is_file():
        print("linked before")
        kept.touch()
        shutil.copyfile(kept, output)
        output.chmod(0o755)
        return 0
    code = subprocess.call(command)
    if code == 0:
        part = folder / f"{kept.name}.{os.getpid()}"
        shutil.copyfile(output, part)
        part.replace(kept)
        for path in sorted(folder.iterdir(), key=age, reverse=True)[KEPT:]:
            path.unlink(missing_ok=True)
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
