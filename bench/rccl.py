"""RCCL for one target: compiled with nothing in a cache, and again with everything in it.

A copy of the definitions with a compiler cache of its own, for a target that this machine's owner hardly has: neither
caches nor names of this machine's images change. Layers below are built before and do not count.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from bench.measure import PYTHON, ROOT, run, table

TARGET = "gfx1101"


def main() -> None:
    measure("training")


def full() -> None:
    measure("full")


def measure(functions: str) -> None:
    with tempfile.TemporaryDirectory(prefix="strix-rccl-") as folder:
        images = Path(folder, "images")
        shutil.copytree(ROOT / "images", images)
        template = images / "rccl/Dockerfile.j2"
        text = template.read_text("utf-8")
        own = text.replace('m.cache("rccl"', f'm.cache("rccl-bench-{os.getpid()}"')
        if own == text:
            raise SystemExit("the template of rccl has no cache that could be replaced")
        template.write_text(own)
        override = Path(folder, "mine")
        override.mkdir()
        (override / "override.toml").write_text(f'[layers.rccl.vars]\nfunctions = "{functions}"\n')
        env = {"XDG_STATE_HOME": f"{folder}/state", "XDG_DATA_HOME": f"{folder}/data"}
        where: list[str | Path] = ["--images", images, "--override", override, "--target", TARGET, "--engine", "docker"]
        build = [PYTHON, "-m", "strix_finetune", "build"]
        run([*build, "rocm-devel", *where], env=env)
        cold = run([*build, "rccl", *where], env=env)
        # another key with the same code in it; --rebuild would make Docker forget the cache, too
        with (images / "rccl/files/build.sh").open("a") as script:
            script.write("# another key\n")
        warm = run([*build, "rccl", *where], env=env)
        table([(f"rccl '{functions}', nothing cached", [cold]), ("the same with its cache", [warm])])
