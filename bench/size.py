"""Size of each layer of the stack, unpacked and as a registry would store it."""

from __future__ import annotations

from bench.measure import PYTHON, ROOT


def main() -> None:
    import subprocess

    subprocess.run(
        [PYTHON, "-m", "strix_finetune", "images", "--compressed", "--engine", "docker"], cwd=ROOT, check=True
    )
