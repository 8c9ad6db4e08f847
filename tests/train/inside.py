"""Run the training tests inside the image: with the torch, the libraries and the Python that people get.

    python tests/train/inside.py [--target T] [--channel C] [--engine E] [pytest arguments after --]

pytest itself is not in the image: it is installed by uv, locked, into build/ and mounted with the checkout.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from strix_finetune.caches import MODELS
from strix_finetune.demomodel import GGUF_NAME
from strix_finetune.netconf import uv_program

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "train-site"
# pure Python, so one folder serves every version
PACKAGES = ("pytest==9.2.0", "pluggy==1.7.0", "iniconfig==2.3.1")


def main(arguments: list[str]) -> int:
    """Return pytest's exit code."""
    where = arguments.index("--") if "--" in arguments else len(arguments)
    options, rest = arguments[:where], arguments[where + 1 :]
    if not (SITE / "pytest").is_dir():
        shutil.rmtree(SITE, ignore_errors=True)
        where_to = ("--target", str(SITE), "--python-version", "3.12")
        subprocess.run([uv_program(), "pip", "install", "--quiet", "--no-deps", *where_to, *PACKAGES], check=True)
    driver = [sys.executable, "-m", "strix_finetune"]
    for step in (["build", *options], ["fetch", "demo", *options]):
        done = subprocess.run([*driver, *step], cwd=ROOT, stdout=sys.stderr)
        if done.returncode:
            return done.returncode
    inside = [
        *("env", f"PYTHONPATH={SITE}:{ROOT}", "PYTHONDONTWRITEBYTECODE=1", f"STRIX_DEMO_GGUF={MODELS}/{GGUF_NAME}"),
        *("python", "-m", "pytest", "-p", "no:cacheprovider", "--confcutdir", "tests/train", "tests/train"),
    ]
    return subprocess.run([*driver, "run", *options, "--", *inside, *rest], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
