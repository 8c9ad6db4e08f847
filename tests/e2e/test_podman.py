"""The same chain on Podman: same keys, a working image, and a Toolbx container of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from strix_finetune.engine.podman_conf import HostFacts, configuration
from tests.e2e.stranger import TRAINING, Stranger

# the target without ROCm: what Podman does with that is the same, and RCCL is not compiled a second time
TARGET = "cpu"
IMAGE = f"localhost/strix-finetune:{TARGET}"


@pytest.fixture(scope="module")
def podman_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the podman program needs on this host; the driver's own service finds it out by itself."""
    text = configuration(HostFacts.read(os.environ), root=os.geteuid() == 0)
    if not text:
        return {}
    path = tmp_path_factory.mktemp("podman") / "containers.conf"
    path.write_text(text)
    return {"CONTAINERS_CONF": str(path)}


def keys(stranger: Stranger, *arguments: str) -> dict[str, str]:
    lines = stranger.strix("plan", "--json", "--override", TRAINING, *arguments).splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    return {event["layer"]: event["key"] for event in events if event["event"] == "layer-planned"}


def test_the_real_chain_builds_on_podman_with_the_same_keys(stranger: Stranger) -> None:
    stranger.run("make", "image", "ENGINE=podman", f"TARGET={TARGET}")
    assert keys(stranger, "--engine", "podman") == keys(stranger, "--engine", "docker")
    assert "building" not in stranger.run("make", "image", "ENGINE=podman", f"TARGET={TARGET}")


def test_podman_run_works(stranger: Stranger, podman_env: dict[str, str]) -> None:
    said = stranger.run("podman", "run", "--rm", "--network", "none", IMAGE, "train", "--version", env=podman_env)
    assert "strix-train" in said


def test_toolbox_create_and_run(stranger: Stranger, podman_env: dict[str, str]) -> None:
    """Toolbx bind-mounts the home; the root of a container's own file system is a folder that exists there."""
    name = f"strix-e2e-{os.getpid()}"
    env = {**podman_env, "TOOLBOX_PATH": "/usr/bin/toolbox"}
    try:
        stranger.run("toolbox", "create", "--image", IMAGE, name, env=env)
        inside = ("toolbox", "run", "--container", name)
        said = in_root(stranger, *inside, "train", "--version", env=env)
        assert "strix-train" in said
        assert "/opt/venv/bin/train" in in_root(stranger, *inside, "sh", "-lc", "command -v train", env=env)
    finally:
        stranger.run("podman", "rm", "--force", "--time", "0", name, env=podman_env)


def in_root(stranger: Stranger, *command: str, env: dict[str, str]) -> str:
    at_root = Stranger(Path("/"), stranger.home)
    return at_root.run(*command, env=env, timeout=180)
