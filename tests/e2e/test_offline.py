"""The real chain of the target cpu, vendored and then built where there is no network at all.

The engine, the driver, mmdebstrap and every build step run in a network namespace that has a loopback and no route.
What was vendored stays in the user's cache, so that a second run fetches nothing. Needs root for the namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.stranger import Stranger

TARGET = "cpu"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
VENDORED = CACHE / "strix-finetune-tests" / "vendored"


@dataclass(frozen=True)
class Island:
    """A namespace without a route, and in it a Docker that has never seen anything. `pid` is a process in it."""

    stranger: Stranger
    folder: Path
    pid: int

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        inside = ("nsenter", f"--net=/proc/{self.pid}/ns/net", "--", *command)
        env = {"DOCKER_HOST": f"unix://{self.folder}/docker.sock", "PYTHONPATH": str(self.stranger.clone / "src")}
        return subprocess.run(
            inside,
            cwd=self.stranger.clone,
            env=self.stranger.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1200,
        )

    def strix(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        where = ("--target", TARGET, "--channel", "debian")
        return self.run(sys.executable, "-m", "strix_finetune", *arguments, *where)


@pytest.fixture(scope="module")
def vendored(stranger: Stranger) -> Path:
    """The folder; fetched by the first run on a machine, and only looked at by the next ones."""
    VENDORED.parent.mkdir(parents=True, exist_ok=True)
    env = {"PYTHONPATH": str(stranger.clone / "src")}
    command = (sys.executable, "-m", "strix_finetune", "vendor", str(VENDORED), "--target", TARGET)
    stranger.run(*command, "--channel", "debian", env=env)
    assert "nothing was fetched" in stranger.run(*command, "--channel", "debian", env=env)
    return VENDORED


@pytest.fixture(scope="module")
def island(stranger: Stranger, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Island]:
    assert os.geteuid() == 0, "a network namespace with an engine in it needs root"
    folder = tmp_path_factory.mktemp("island")
    (folder / "daemon.json").write_text(json.dumps({"features": {"buildkit": True}}))
    daemon = ["dockerd", "--config-file", f"{folder}/daemon.json", "--data-root", f"{folder}/data"]
    daemon += ["--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid", "--host", f"unix://{folder}/docker.sock"]
    daemon += ["--bridge", "none", "--iptables=false"]
    script = 'ip link set lo up; exec "$@"'
    with (folder / "dockerd.log").open("w") as log:
        process = subprocess.Popen(["unshare", "--net", "sh", "-c", script, "sh", *daemon], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while not (folder / "docker.sock").exists():
            assert process.poll() is None, (folder / "dockerd.log").read_text()[-4000:]
            assert time.monotonic() < deadline, "dockerd does not start"
            time.sleep(0.2)
        yield Island(stranger, folder, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        shutil.rmtree(folder / "data", ignore_errors=True)


def test_the_island_has_no_way_out(island: Island) -> None:
    assert island.run("ip", "route").stdout == ""
    listed = json.loads(island.run("ip", "-json", "link").stdout)
    assert [link["ifname"] for link in listed] == ["lo"]
    # an ordinary build finds that out, and says so
    done = island.strix("build", "--engine", "docker")
    assert done.returncode == 1
    assert "cannot be reached" in done.stdout


def test_the_real_chain_is_built_there(island: Island, vendored: Path) -> None:
    done = island.strix("build", "--engine", "docker", "--offline", str(vendored))
    assert done.returncode == 0, done.stdout[-8000:]
    image = f"localhost/strix-finetune:{TARGET}"
    assert re.fullmatch(rf"\d+ built in .*: {image}", done.stdout.splitlines()[-1])
    said = island.run("docker", "run", "--rm", "--network", "none", image, "train", "--version")
    assert said.returncode == 0, said.stdout
    assert "strix-train" in said.stdout


def test_then_there_is_nothing_to_do(island: Island, vendored: Path) -> None:
    done = island.strix("plan", "--engine", "docker", "--offline", str(vendored), "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    plan = {row["layer"]: row["action"] for row in rows if row["event"] == "layer-planned"}
    assert plan == {**dict.fromkeys(plan, "reuse"), "workbench": "not-needed"}
