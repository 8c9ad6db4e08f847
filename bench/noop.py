"""Nothing changed: a build of five layers that are all there, as a whole process, beside the peers."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from bench import chain
from bench.measure import PYTHON, run, table, times

PREFIX = "localhost/strix-bench"
COUNT = 15

_DOCKER_PY = """
import sys, docker
client = docker.from_env()
for pair in sys.argv[1:]:
    tag, path = pair.split("=", 1)
    client.images.build(path=path, tag=tag)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rows = [_ours(root), ("this project's own stack", _real())]
        try:
            rows += _peers(root)
        finally:
            _clean()
        table(rows)


def _ours(root: Path) -> tuple[str, list[float]]:
    images = chain.write_definitions(root)
    env = {"XDG_CACHE_HOME": str(root / "cache"), "XDG_STATE_HOME": str(root / "state")}
    command: list[str | Path] = [
        PYTHON,
        "-m",
        "strix_finetune",
        "build",
        "--target",
        chain.TARGET,
        "--images",
        images,
        "--engine",
        "docker",
    ]
    run(command, env=env)
    # files that were just written may change again within the clock's tick: the memo waits two seconds for that
    time.sleep(2.1)
    return "strix-finetune build, five layers", times(command, COUNT, env=env)


def _real() -> list[float]:
    return times([PYTHON, "-m", "strix_finetune", "build", "--engine", "docker"], COUNT)


def _peers(root: Path) -> list[tuple[str, list[float]]]:
    made = chain.write_dockerfiles(root / "peers", PREFIX)
    pairs = [f"{tag}={path}" for tag, path in made]
    rows = [("docker-py 7.2, classic builder", times([PYTHON, "-c", _DOCKER_PY, *pairs], COUNT))]
    if shutil.which("docker"):
        script = " && ".join(f"docker build -q -t {tag} {path}" for tag, path in made)
        rows.append(
            ("docker command, classic builder", times(["sh", "-c", script], COUNT, env={"DOCKER_BUILDKIT": "0"}))
        )
    if shutil.which("podman"):
        from strix_finetune.engine.podman_conf import HostFacts, configuration

        conf = root / "containers.conf"
        conf.write_text(configuration(HostFacts.read(os.environ), root=os.geteuid() == 0))
        env = {"CONTAINERS_CONF": str(conf)} if conf.read_text() else {}
        script = " && ".join(f"podman build -q -t {tag} {path}" for tag, path in made)
        rows.append(("podman command", times(["sh", "-c", script], 5, env=env)))
    return rows


def _clean() -> None:
    """Remove the bench's images; ours go by their label's target, the peers' by their prefix."""
    for program in ("docker", "podman"):
        if not shutil.which(program):
            continue
        names = [f"{PREFIX}/{name}:1" for name in reversed(chain.LAYERS)]
        listed = subprocess.run(
            [program, "images", "--format", "{{.Repository}}:{{.Tag}}"], capture_output=True, text=True
        ).stdout.split()
        ours = [name for name in listed if "/strix-finetune" in name and f":{chain.TARGET}" in name]
        subprocess.run([program, "rmi", "-f", *names, *ours], capture_output=True)
