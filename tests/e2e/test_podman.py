"""The same chain on Podman: same keys, a working image, a Toolbx container of it, and all of it without root."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strix_finetune.engine.podman_conf import HostFacts, configuration
from tests.e2e.somebody import Somebody, somebody
from tests.e2e.stranger import TRAINING, Stranger

# the target without ROCm: what Podman does with that is the same, and RCCL is not compiled a second time
TARGET = "cpu"
IMAGE = f"localhost/strix-finetune:{TARGET}"
# of a run by which only the way there is shown
QUICK = ("--set", "schedule.steps=2", "--set", "questions=null", "--run-dir")


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


def test_toolbox_create_alone_works_after_setup(stranger: Stranger, podman_env: dict[str, str]) -> None:
    """docs/toolbox.md: nothing is said but the name, and no shell is in the environment for setup."""
    name = f"strix-e2e-setup-{os.getpid()}"
    conf = stranger.home / ".config/containers/toolbox.conf"
    conf.parent.mkdir(parents=True, exist_ok=True)
    own = "# mine\n[general]\n"
    conf.write_text(own)
    try:
        assert IMAGE in stranger.strix("toolbox", "setup", "--target", TARGET)
        stranger.run("toolbox", "create", name, env=podman_env)
        image = stranger.run("podman", "inspect", "--format", "{{.ImageName}}", name, env=podman_env)
        assert image.strip() == IMAGE
        assert "strix-train" in in_root(
            stranger, "toolbox", "run", "--container", name, "train", "--version", env=podman_env
        )
    finally:
        stranger.run("podman", "rm", "--force", "--ignore", "--time", "0", name, env=podman_env)
    stranger.strix("toolbox", "setup", "--undo")
    assert conf.read_text() == own


def test_toolbox_create_and_refresh_in_one_step(stranger: Stranger, podman_env: dict[str, str]) -> None:
    name = f"strix-e2e-box-{os.getpid()}"
    options = ("--target", TARGET)
    try:
        assert f"created {name} of {IMAGE}" in stranger.strix("toolbox", "create", *options, name)
        first = stranger.run("podman", "inspect", "--format", "{{.Id}}", name, env=podman_env)
        said = stranger.strix("toolbox", "refresh", *options, "--override", TRAINING, "--force", name)
        assert "tested: strix-train" in said
        assert stranger.run("podman", "inspect", "--format", "{{.Id}}", f"{name}-before", env=podman_env) == first
        assert stranger.run("podman", "inspect", "--format", "{{.Id}}", name, env=podman_env) != first
        said = entered(stranger, name, podman_env)
        assert "GPU: " in said
        assert "next: train recipes" in said
    finally:
        for each in (name, f"{name}-before", f"{name}-new"):
            stranger.run("podman", "rm", "--force", "--ignore", "--time", "0", each, env=podman_env)


def entered(stranger: Stranger, name: str, env: dict[str, str]) -> str:
    """What a person sees on a terminal who enters a container."""
    code = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))"
    return in_root(stranger, sys.executable, "-c", code, "toolbox", "run", "-c", name, "bash", "-lic", "exit", env=env)


@pytest.fixture(scope="module")
def user(stranger: Stranger, registry: str) -> Iterator[Somebody]:
    """Rootless Podman, no access to Docker, no SHELL in the environment; the image comes from a registry."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a user; a normal user's own tests are the ones above")
    stranger.run("make", "image", "ENGINE=podman", f"TARGET={TARGET}")
    stranger.strix("fetch", "demo", "--engine", "podman", "--target", TARGET)
    release = f"{registry}/of-root"
    options = ("--engine", "podman", "--target", TARGET)
    stranger.strix("push", *options, "--to", release)
    with somebody(stranger.clone) as made:
        assert f"{IMAGE}" in made.strix("pull", *options, "--from", release)
        cache = made.home / ".cache/strix-finetune/models"
        made.run("mkdir", "-p", str(cache), "project")
        shutil.copytree(stranger.home / ".cache/strix-finetune/models/demo", cache / "demo")
        yield made


def test_a_normal_user_trains_in_a_toolbox_and_owns_what_comes_of_it(user: Somebody) -> None:
    user.strix("toolbox", "setup", "--target", TARGET)
    said = user.strix("toolbox", "create", "--target", TARGET)
    assert "copies the image once for your user id, 1." in said
    assert "created strix-finetune of" in said
    said = user.strix("toolbox", "refresh", "--target", TARGET, "--as-is", "--force")
    assert "tested: strix-train" in said
    assert "copies the image" not in said
    user.run("podman", "rm", "--force", "--time", "0", "strix-finetune", "strix-finetune-before")
    user.toolbox("create", "strix-finetune")
    inside = ("run", "--container", "strix-finetune")
    assert user.toolbox(*inside, "id", "-u").strip() == str(user.uid)
    user.toolbox(*inside, "train", "demo", *QUICK, "run")
    check(user.home / "run", user)
    user.run("podman", "rm", "--force", "--time", "0", "strix-finetune")


def test_a_normal_user_trains_by_the_launcher(user: Somebody) -> None:
    user.strix("train", "--engine", "podman", "--target", TARGET, "demo", *QUICK, "run2")
    check(user.home / "run2", user)


def test_a_normal_user_s_podman_run_as_it_is_printed(user: Somebody) -> None:
    project = user.home / "project"
    words = ("train", "--engine", "podman", "--target", TARGET, "--print", "demo", *QUICK, "printed")
    command = user.strix(*words, cwd=project).splitlines()[-1]
    assert "podman run --rm" in command
    assert "--userns keep-id" in command
    user.run("sh", "-c", command, cwd=project)
    check(project / "printed", user)


def check(run: Path, user: Somebody) -> None:
    """The run is whole, and every file of it is the user's."""
    assert (run / "adapter/adapter_model.safetensors").is_file()
    assert {path.stat().st_uid for path in (run, *run.rglob("*"))} == {user.uid}


def in_root(stranger: Stranger, *command: str, env: dict[str, str]) -> str:
    at_root = Stranger(Path("/"), stranger.home)
    return at_root.run(*command, env=env, timeout=180)
