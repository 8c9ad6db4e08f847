"""One recipe by the tools of a host: it fine-tunes in each of them, and what comes of it belongs to whoever called.

The model is tiny and made on the spot: what is shown is how the tools run the image, not what a model learns. Toolbx
and a normal user's Podman are in test_podman.py.
"""

from __future__ import annotations

import grp
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from strix_finetune.engine.podman_conf import HostFacts, configuration
from tests.e2e.somebody import Somebody, somebody
from tests.e2e.stable_tools import apt_conf, unpacked
from tests.e2e.stranger import TRAINING, Stranger

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a normal user")

DOCKER_IMAGE = "localhost/strix-finetune:gfx1151"
PODMAN_IMAGE = "localhost/strix-finetune:cpu"
TESTS = Path(__file__).resolve().parents[1]
MODELS = ".cache/strix-finetune/models"
RECIPE = """\
model: tiny
backend: hf
data: {train: rows.jsonl}
schedule: {steps: 2, batch: 4, warmup: 0, max_length: 128}
"""
# what makes the model and its rows, where torch is
MAKE = """\
from pathlib import Path
import tiny_models
tiny_models.make("llama", Path("tiny"))
tiny_models.write_data(Path())
"""


@pytest.fixture(scope="module")
def podman_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the podman program of root needs on this host."""
    text = configuration(HostFacts.read(os.environ), root=True)
    path = tmp_path_factory.mktemp("podman") / "containers.conf"
    path.write_text(text)
    return {"CONTAINERS_CONF": str(path)} if text else {}


@pytest.fixture(scope="module")
def material(stranger: Stranger, podman_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model `tiny`, rows and the recipe."""
    stranger.run("make", "image", "ENGINE=podman", "TARGET=cpu")
    folder = tmp_path_factory.mktemp("material")
    inside = ("--network", "none", "-v", f"{folder}:{folder}", "-w", str(folder), "-v", f"{TESTS}/train:/train:ro")
    command = ("--env", "PYTHONPATH=/train", PODMAN_IMAGE, "python", "-c", MAKE)
    stranger.run("podman", "run", "--rm", *inside, *command, env=podman_env)
    (folder / "tiny.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Debian 12 has Compose 1, and a Distrobox that knows no pre_init_hooks in a file."""
    return unpacked(tmp_path_factory.mktemp("stable"), "docker-compose", "distrobox")


@pytest.fixture(scope="module")
def user(stranger: Stranger, material: Path, tools: Path) -> Iterator[Somebody]:
    """A normal user who may use Docker, with a project, the model, and Compose."""
    docker = grp.getgrgid(Path("/var/run/docker.sock").stat().st_gid).gr_name
    with somebody(stranger.clone, docker) as made:
        shutil.copytree(tools, made.place / "tools")
        cache = made.home / ".cache"
        made.run("mkdir", "-p", str(made.home / MODELS), str(cache / "strix-finetune/compiled"))
        made.run("mkdir", "-p", str(cache / "huggingface"), "project")
        lay(material, made.home / MODELS, made.home / "project")
        for path in (*(made.home / MODELS).rglob("*"), *(made.home / "project").iterdir()):
            os.chown(path, made.uid, made.uid)
        yield made


def lay(material: Path, models: Path, project: Path) -> None:
    shutil.copytree(material / "tiny", models / "tiny", dirs_exist_ok=True)
    for name in ("rows.jsonl", "tiny.yaml"):
        shutil.copy(material / name, project)


def check(run: Path, uid: int) -> None:
    """The run is whole, and every file of it is the caller's."""
    assert (run / "adapter/adapter_model.safetensors").is_file()
    assert {path.stat().st_uid for path in (run, *run.rglob("*"))} == {uid}


def line(user: Somebody, name: str, *options: str) -> str:
    """The command that the launcher prints, behind notes, for a run of the recipe into the folder `name`."""
    project = user.home / "project"
    said = user.strix("train", *options, "--print", "tiny.yaml", "--run-dir", name, cwd=project)
    return said.splitlines()[-1]


def test_docker_run_as_it_is_printed(user: Somebody, stranger: Stranger) -> None:
    stranger.run("make", "image", f"OVERRIDE={TRAINING}")
    command = line(user, "docker", "--engine", "docker", "--target", "gfx1151", "--channel", "debian")
    assert "docker run --rm" in command
    user.run("sh", "-c", command, cwd=user.home / "project")
    check(user.home / "project/docker", user.uid)


def test_compose_with_the_emitted_file(user: Somebody, stranger: Stranger) -> None:
    stranger.run("make", "image", f"OVERRIDE={TRAINING}")
    project = user.home / "project"
    user.strix("emit", "compose", "-t", "cpu", "--image", DOCKER_IMAGE, "-o", "compose.yaml", cwd=project)
    program = str(user.place / "tools/usr/bin/docker-compose")
    command = ("train", "tiny.yaml", "--run-dir", "compose")
    user.run(program, "run", "--rm", "--no-TTY", "strix-finetune", *command, cwd=project)
    check(project / "compose", user.uid)


def test_root_s_podman_run_as_it_is_printed(
    stranger: Stranger, material: Path, podman_env: dict[str, str], tmp_path: Path
) -> None:
    (stranger.home / MODELS).mkdir(parents=True, exist_ok=True)
    lay(material, stranger.home / MODELS, tmp_path)
    root = Stranger(tmp_path, stranger.home)
    program = str(stranger.clone / ".venv/bin/strix-finetune")
    options = ("--engine", "podman", "--target", "cpu", "--channel", "debian")
    command = root.run(program, "train", *options, "--print", "tiny.yaml", "--run-dir", "podman").splitlines()[-1]
    assert "podman run --rm" in command
    root.run("sh", "-c", command, env=podman_env)
    check(tmp_path / "podman", os.getuid())


def test_distrobox_with_the_emitted_file(
    stranger: Stranger, material: Path, tools: Path, podman_env: dict[str, str], tmp_path: Path
) -> None:
    """Entered for the first time it installs what the definition says, here from this host's mirror."""
    (stranger.home / MODELS).mkdir(parents=True, exist_ok=True)
    lay(material, stranger.home / MODELS, tmp_path)
    root, name = Stranger(tmp_path, stranger.home), f"strix-e2e-{os.getpid()}"
    program = str(stranger.clone / ".venv/bin/strix-finetune")
    root.run(program, "emit", "distrobox", "-t", "cpu", "--name", name, "-o", "box.ini")
    (tmp_path / "apt.conf").write_text(apt_conf())
    mount = f'volume="{tmp_path}/apt.conf:/etc/apt/apt.conf.d/99host:ro"'
    box = tmp_path / "box.ini"
    box.write_text(box.read_text().replace("\nstart_now=", f"\n{mount}\nstart_now=", 1))
    env = podman_env | {"PATH": f"{tools}/usr/bin:{os.environ['PATH']}", "SHELL": "/bin/bash"}
    env |= {"DBX_CONTAINER_MANAGER": "podman", "DBX_NON_INTERACTIVE": "1"}
    try:
        root.run("distrobox", "assemble", "create", "--file", "box.ini", env=env)
        enter = ("distrobox", "enter", "--no-tty", name, "--")
        root.run(*enter, "train", "tiny.yaml", "--run-dir", "distrobox", env=env)
    finally:
        root.run("podman", "rm", "--force", "--ignore", "--time", "0", name, env=podman_env)
    check(tmp_path / "distrobox", os.getuid())
