"""The whole chain from nothing, in a Docker engine of its own; then again with only the download caches warm.

Everything is inside the time: bootstrap, downloads, installation, smoke tests. The engine's data lies in a temporary
folder, so no cache of this machine is used or harmed. Needs root.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import PYTHON, ROOT, run, table


def main() -> None:
    if os.geteuid() != 0:
        raise SystemExit("the cold build starts an engine of its own, which needs root")
    with tempfile.TemporaryDirectory(prefix="strix-cold-") as folder, engine(Path(folder)) as socket:
        env = {
            "DOCKER_HOST": f"unix://{socket}",
            "XDG_CACHE_HOME": f"{folder}/cache",
            "XDG_STATE_HOME": f"{folder}/state",
            # this engine has no bridge: with something on the loopback, every step shares the host's network
            "ftp_proxy": "http://127.0.0.1:9",
        }
        for target in ("cpu", "gfx1151"):
            command: list[str | Path] = [
                PYTHON,
                "-m",
                "strix_finetune",
                "build",
                "--engine",
                "docker",
                "--target",
                target,
            ]
            command += ["--override", ROOT / "images/profiles/training"]
            cold = run(command, env=env)
            _forget_images(socket)
            warm = run(command, env=env)
            _forget_images(socket)
            table([(f"{target}, nothing cached", [cold]), (f"{target}, downloads cached", [warm])])


@contextlib.contextmanager
def engine(folder: Path) -> Iterator[str]:
    """A dockerd with its data in `folder`, without a bridge: build steps share the host's network."""
    socket = f"{folder}/docker.sock"
    config = folder / "daemon.json"
    config.write_text(json.dumps({"features": {"buildkit": True}}))
    process = subprocess.Popen(
        [
            *(
                "dockerd",
                "--config-file",
                str(config),
                "--data-root",
                f"{folder}/data",
                "--exec-root",
                f"{folder}/exec",
            ),
            *("--pidfile", f"{folder}/pid", "--host", f"unix://{socket}", "--bridge", "none", "--iptables=false"),
        ],
        stdout=(folder / "dockerd.log").open("w"),
        stderr=subprocess.STDOUT,
    )
    try:
        deadline = time.monotonic() + 60
        while not os.path.exists(socket):  # noqa: PTH110
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit(f"dockerd does not start:\n{(folder / 'dockerd.log').read_text()[-2000:]}")
            time.sleep(0.2)
        yield socket
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        shutil.rmtree(folder / "data", ignore_errors=True)


def _forget_images(socket: str) -> None:
    """Remove every image and every cached step; cache mounts, which hold downloads, stay."""
    import docker

    client = docker.APIClient(base_url=f"unix://{socket}", version="auto")
    for image in client.images(all=False):
        for tag in image["RepoTags"] or [image["Id"]]:
            with contextlib.suppress(docker.errors.APIError):
                client.remove_image(tag, force=True)
    for kind in ("regular", "source.local", "frontend", "internal"):
        filters = json.dumps({"type": [kind]})
        url = f"{client.base_url}/v{client.api_version}/build/prune"
        response = client.post(url, params={"all": "1", "filters": filters})
        response.raise_for_status()
    client.close()
