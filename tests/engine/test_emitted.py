"""Emitted definitions in the hands of the real tools.

The tools are those of Debian's stable suite, in a container: a Podman with Quadlet, Distrobox, Compose, udev, kmod,
systemd and ShellCheck; and the devcontainer program, where there is npm to bring it. That the GPU's device files reach
a container cannot be shown without a GPU; device files that every machine has stand in for them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from strix_finetune import netconf
from strix_finetune.caches import CACHES
from strix_finetune.cli import main
from strix_finetune.engine.podman_conf import HostFacts, configuration
from tests.engine.conftest import Bench

pytestmark = pytest.mark.engine

PACKAGES = (
    # what the others are written for; nothing is configured, so nothing brings it by itself
    *("base-files", "base-passwd", "bash", "coreutils", "dash", "findutils", "grep", "hostname", "libc-bin", "mawk"),
    *("sed", "util-linux"),
    *("podman", "podman-compose", "distrobox", "docker-compose", "kmod", "shellcheck", "systemd", "udev"),
    "docker-buildx",
)
USER = "4321:4322"
Tools = Callable[..., str]


def said(*command: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """What a command printed; fails with all of it when it fails."""
    done = subprocess.run(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """The tools: 20 s, 370 MB, and nothing of it stays."""
    name = f"localhost/strix-emit-tools:{os.getpid()}"
    settings = netconf.collect(os.environ)
    # a mirror of a closed network may be an old copy; signatures are verified all the same
    options = [f'--aptopt={key} "{value}"' for key, value in settings.apt_options]
    make = ["mmdebstrap", "--variant=extract", "--include=" + ",".join(PACKAGES), "--format=tar", "--skip=output/dev"]
    mirror = [settings.debian_mirror] if settings.debian_mirror else []
    command = shlex.join([*make, *options, '--aptopt=APT::Install-Recommends "false"', "stable", "-", *mirror])
    env = {**os.environ, **settings.proxies}
    said("bash", "-c", f"set -o pipefail; {command} | docker import - {name}", env=env)
    try:
        yield name
    finally:
        said("docker", "rmi", "--force", name)


@pytest.fixture
def tools(image: str, tmp_path: Path) -> Tools:
    """Run a shell command among the tools, in the folder of the test, which has the same path there."""

    def run(script: str, *flags: str) -> str:
        mount = f"type=bind,source={tmp_path},target={tmp_path}"
        inside = ("--env", "HOME=/root", "--env", "USER=root", "--env", "SHELL=/bin/sh", "--mount", mount)
        return said("docker", "run", "--rm", *inside, "--workdir", str(tmp_path), *flags, image, "sh", "-euc", script)

    return run


@pytest.fixture(autouse=True)
def usual_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caches are where they are by default, whoever runs the tests."""
    for cache in CACHES:
        monkeypatch.delenv(cache.variable or "XDG_CACHE_HOME", raising=False)


def emit(*arguments: str) -> None:
    assert main(["emit", *arguments]) == 0


def test_quadlet_makes_a_service_of_each_unit(tools: Tools, tmp_path: Path) -> None:
    project = tmp_path / "project"
    common = ("--project", str(project), "-t", "gfx1151")
    emit("quadlet", *common, "-o", str(tmp_path / "local.container"))
    remote = (
        "--image",
        "registry.example.org/me/image:1",
        "--rdma",
        "--selinux",
        "-o",
        str(tmp_path / "job.container"),
    )
    emit("quadlet", *common, *remote, "--", "train", "a b.yaml", "--set", "x=100% $y")
    generator = f"QUADLET_UNIT_DIRS={tmp_path} /usr/lib/systemd/system-generators/podman-system-generator"
    # warnings and refusals of the generator are lines of "converting" and "unsupported key"
    printed = tools(f"{generator} --user --dryrun")
    assert "onverting" not in printed
    assert "unsupported" not in printed
    tools(f"{generator} --user {tmp_path}/out; systemd-analyze verify {tmp_path}/out/*.service")
    local, job = ((tmp_path / "out" / f"{name}.service").read_text() for name in ("local", "job"))
    line = next(line for line in local.splitlines() if line.startswith("ExecStart="))
    for flags in (
        "--pull never",
        "--userns keep-id",
        "--group-add keep-groups",
        "--device /dev/kfd --device /dev/dri",
        "--shm-size 8g",
        f"-v {project}:{project}",
        f"--workdir {project}",
        "localhost/strix-finetune:gfx1151 sleep infinity",
    ):
        assert flags in line
    assert "job-image.service" in job
    line = next(line for line in job.splitlines() if line.startswith("ExecStart="))
    for flags in ("--security-opt label=disable", "--ulimit memlock=-1:-1", "--stop-timeout=300", "--network host"):
        assert flags in line
    assert line.endswith('train "a b.yaml" --set "x=100%% $$y"')


def test_distrobox_mounts_what_lies_outside_the_home(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", "/data/hub")
    monkeypatch.setenv("STRIX_MODELS", "/data/models")
    emit("distrobox", "-t", "gfx1151", "-o", str(tmp_path / "box.ini"))
    words = tools("distrobox assemble create --dry-run --file box.ini").split()
    volumes = {words[at + 1] for at, word in enumerate(words) if word == "--volume"}
    assert volumes == {"/data/hub:/data/hub", "/data/models:/data/models"}


def test_distrobox_gives_podman_the_image_and_no_device_flags(tools: Tools, tmp_path: Path) -> None:
    emit("distrobox", "-t", "gfx1151", "--name", "mine", "--rdma", "-o", str(tmp_path / "box.ini"))
    printed = tools("distrobox assemble create --dry-run --file box.ini")
    create = next(line for line in printed.splitlines() if "distrobox-create" in line).strip()
    assert "--name mine --image localhost/strix-finetune:gfx1151" in create
    printed = tools(f"DBX_CONTAINER_MANAGER=podman {create} --dry-run")
    words = shlex.split(printed[printed.index("podman create") :])
    hook = words[words.index("--pre-init-hooks") + 1]
    said("bash", "-n", "-c", hook)
    assert "command -v zip > /dev/null || { apt-get update && " in hook
    # what the definition says of Distrobox: each command that it wants is there, or in a package of the hook
    listed = re.search(r"\ndependencies=\"\n(.*?)\"\n", tools("cat /usr/bin/distrobox-init"), re.S)
    assert listed
    packages = {
        "ssh": "openssh-client",
        "ping": "iputils-ping",
        "ps": "procps",
        "pinentry": "pinentry-curses",
        "man": "man-db",
    }
    wanted = {packages.get(name, name) for name in listed[1].split()} - {"${shell_pkg}"}
    in_base = {"chpasswd", "diff", "find", "findmnt", "hostname", "mount", "passwd", "script", "sudo", "umount"}
    assert wanted - in_base - {"useradd", "wc"} == set(hook.split("--no-install-recommends ")[1].split(";")[0].split())
    # and of what it does by itself
    assert "--privileged" in words
    assert words[words.index("--ipc") + 1] == "host"
    assert "/dev:/dev:rslave" in words
    assert "run.oci.keep_original_groups=1" in words
    assert words[words.index("memlock=-1:-1") - 1] == "--ulimit"
    assert not {"--device", "--shm-size"} & set(words)


def test_compose_reads_and_runs_it(tools: Tools, tmp_path: Path, docker_bench: Bench) -> None:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "compose.yaml").touch()
    tmp_path.chmod(0o777)
    common = ("-t", "gfx1151", "--image", docker_bench.base, "--user", USER, "--group", "44", "--group", "992")
    devices = ("--device", "/dev/null", "--device", "/dev/zero", "--hf-token", str(tmp_path / "token"))
    emit("compose", *common, *devices, "--force", "-o", str(tmp_path / "compose.yaml"))
    read = json.loads(tools("docker-compose config --format json"))["services"]["strix-finetune"]
    assert (read["group_add"], read["user"], read["shm_size"]) == (["44", "992"], USER, str(8 << 30))
    socket = ("--mount", "type=bind,source=/var/run/docker.sock,target=/var/run/docker.sock")
    home = (*socket, "--env", f"HOME={tmp_path}")
    inside = "id; cat $HF_TOKEN_PATH; touch made; dd if=/dev/zero of=/dev/null count=1"
    command = f"docker-compose run --rm --no-TTY strix-finetune sh -c {shlex.quote(inside)}"
    # folders that are missing are refused, and not made
    with pytest.raises(AssertionError, match="bind source path does not exist"):
        tools(command, *home)
    assert not (tmp_path / ".cache").exists()
    for cache in CACHES:
        (tmp_path / ".cache" / cache.folder).mkdir(parents=True)
    printed = tools(command, *home)
    assert re.search(r"uid=4321 gid=4322 groups=\S*44,992", printed)
    assert "secret" in printed
    made = (tmp_path / "made").stat()
    assert (made.st_uid, made.st_gid) == (4321, 4322)
    # no network of its own stays behind
    assert tmp_path.name not in said("docker", "network", "ls")


def test_the_devcontainer_program_starts_it_as_the_caller(tmp_path: Path, docker_bench: Bench) -> None:
    project = tmp_path / "project"
    (project / ".devcontainer").mkdir(parents=True)
    project.chmod(0o777)
    common = ("-t", "gfx1151", "--image", docker_bench.base, "--user", USER, "--group", "44", "--device", "/dev/null")
    emit("devcontainer", *common, "-o", str(project / ".devcontainer"))
    program = (str(devcontainer_program(tmp_path)),)
    where = ("--workspace-folder", str(project))
    label = f"devcontainer.local_folder={project}"
    try:
        assert '"outcome":"success"' in said(*program, "up", *where, env=home(tmp_path))
        printed = said(*program, "exec", *where, "sh", "-c", "id; touch made", env=home(tmp_path))
        assert re.search(r"uid=4321 gid=4322 groups=\S*44", printed)
        made = (project / "made").stat()
        assert (made.st_uid, made.st_gid) == (4321, 4322)
    finally:
        found = said("docker", "ps", "--all", "--quiet", "--filter", f"label={label}").split()
        if found:
            said("docker", "rm", "--force", *found)


def test_podman_compose_says_it_to_podman(tools: Tools, tmp_path: Path) -> None:
    """Podman in a container of another engine cannot run one, so this reads what it would be told."""
    emit("compose", "-t", "gfx1151", "--engine", "podman", "--selinux", "-o", str(tmp_path / "compose.yaml"))
    program = """case $1 in run) printf '%s\\n' "$@" ;; --version) exec /usr/bin/podman --version ;; esac"""
    (tmp_path / "podman").write_text(f"#!/bin/sh\n{program}\n")
    (tmp_path / "podman").chmod(0o755)
    words = tools("PATH=$PWD:$PATH podman-compose run --rm strix-finetune train recipe.yaml").splitlines()
    for flag, value in (("--userns", "keep-id"), ("--group-add", "keep-groups"), ("--security-opt", "label=disable")):
        assert words[words.index(flag) + 1] == value
    # a pod and a user namespace of its own cannot be had together
    assert not [word for word in words if word.startswith("--pod")]
    assert "/root/.cache/huggingface:/hub:rw" in words
    assert [word for word in words if word.startswith("/dev/")] == ["/dev/kfd:/dev/kfd", "/dev/dri:/dev/dri"]
    assert words[-3:] == ["localhost/strix-finetune:gfx1151", "train", "recipe.yaml"]


def test_udev_and_modprobe_read_the_snippets(tools: Tools, tmp_path: Path) -> None:
    for access in ("group", "seat", "everybody"):
        emit("udev", "--access", access, "-o", str(tmp_path / f"{access}.rules"))
    assert "Success: 3" in tools("udevadm verify --resolve-names=never *.rules")
    emit("modprobe", "--gtt", "112", "-o", str(tmp_path / "ttm.conf"))
    assert "options ttm pages_limit=29360128" in tools(f"modprobe --showconfig --config {tmp_path}").splitlines()


def test_scripts_have_no_fault_that_shellcheck_knows(tools: Tools, tmp_path: Path) -> None:
    token = tmp_path / "a token"
    token.touch()
    for kind in ("docker", "podman", "wsl"):
        emit(kind, "-t", "gfx1151", "-o", str(tmp_path / f"{kind}-plain.sh"))
        more = ["--hf-token", str(token), "--project", str(tmp_path), "--shm", "2"]
        more += ["--rdma", "--selinux", "--device", "/dev/kfd"] if kind != "wsl" else []
        emit(kind, "-t", "gfx1151", *more, "-o", str(tmp_path / f"{kind}-more.sh"), "--", "train", "a b.yaml")
    for runtime in ("podman", "apptainer", "pyxis"):
        for gpu, more in (("gfx1151", ["--rdma", "--hf-token", str(token), "--suffix", "-ib"]), ("cpu", ["--selinux"])):
            where = ["--image", "registry.example.org/me/image:1", "-o", str(tmp_path / f"{runtime}-{gpu}-slurm.sh")]
            emit("slurm", "-t", gpu, "--with", runtime, "--nodes", "2", *more, *where, "--", "train", "gemma3-4b-lora")
    # a loop over one device is meant
    tools("shellcheck --exclude=SC2043 *.sh")


def test_docker_runs_the_line_as_the_caller(tmp_path: Path, docker_bench: Bench) -> None:
    script = tmp_path / "run.sh"
    tmp_path.chmod(0o777)
    common = ("-t", "gfx1151", "--image", docker_bench.base, "--device", "/dev/null", "--device", "/dev/ptmx")
    emit("docker", *common, "--user", USER, "-o", str(script))
    printed = said(str(script), "sh", "-c", "id; touch 'made here'", env=home(tmp_path), cwd=tmp_path)
    group = Path("/dev/ptmx").stat().st_gid
    assert re.search(rf"uid=4321 gid=4322 groups=4322{f',{group}' if group else ''}$", printed, re.M)
    made = (tmp_path / "made here").stat()
    assert (made.st_uid, made.st_gid) == (4321, 4322)


def test_podman_runs_the_line(tmp_path: Path, podman_bench: Bench) -> None:
    script = tmp_path / "run.sh"
    emit("podman", "-t", "gfx1151", "--image", podman_bench.base, "--device", "/dev/null", "-o", str(script))
    env = home(tmp_path) | podman_env(tmp_path)
    printed = said(str(script), "sh", "-c", "id; touch made", env=env, cwd=tmp_path)
    assert f"uid={os.getuid()}" in printed
    assert (tmp_path / "made").stat().st_uid == os.getuid()


def test_toolbx_takes_the_image_from_its_configuration(tmp_path: Path, podman_bench: Bench) -> None:
    name = f"strix-emit-{os.getpid()}"
    folder = tmp_path / ".config/containers"
    folder.mkdir(parents=True)
    emit("toolbox", "-t", "cpu", "--image", podman_bench.base, "-o", str(folder / "toolbox.conf"))
    env = home(tmp_path) | podman_env(tmp_path) | {"SHELL": "/bin/sh", "TOOLBOX_PATH": "/usr/bin/toolbox"}
    try:
        said("toolbox", "--assumeyes", "create", name, env=env)
        inspect = ("podman", "container", "inspect", "--format", "{{.ImageName}}", name)
        assert said(*inspect, env=env).strip() == podman_bench.base
    finally:
        subprocess.run(["podman", "rm", "--force", name], env=env, capture_output=True)


def devcontainer_program(folder: Path) -> Path:
    """The program of the specification's authors: only npm has it, so without npm or its registry there is no test."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is missing, which brings the devcontainer program")
    install = (npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), "@devcontainers/cli")
    done = subprocess.run(install, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"npm cannot bring the devcontainer program: {done.stderr.strip()[-200:]}")
    return folder / "node_modules/.bin/devcontainer"


def home(tmp_path: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "HF_"))}
    return kept | {"HOME": str(tmp_path)}


def podman_env(tmp_path: Path) -> dict[str, str]:
    """What the podman program needs on this host; the driver's own service finds it out by itself."""
    text = configuration(HostFacts.read(os.environ), root=os.geteuid() == 0)
    path = tmp_path / "containers.conf"
    path.write_text(text)
    return {"CONTAINERS_CONF": str(path)} if text else {}


def test_buildx_understands_the_bake_file(tools: Tools, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emit", "bake", "--target", "gfx1151,cpu", "--channel", "debian"]) == 0
    (tmp_path / "docker-bake.json").write_text(capsys.readouterr().out)
    bake = "PREFIX=registry.example.org/me/images /usr/libexec/docker/cli-plugins/docker-buildx bake --print"
    printed = tools(f"{bake} gfx1151")
    # what buildx says of its progress stands around the file
    made, _ = json.JSONDecoder().raw_decode(printed, printed.index("{\n"))
    # what the target stands on comes along, and what only others stand on does not
    assert {name.rpartition("-")[2] for name in made["target"]} == {"gfx1151"}
    assert {"base-gfx1151", "rccl-gfx1151", "finetune-gfx1151"} <= set(made["target"])
    assert "registry.example.org/me/images:gfx1151" in made["target"]["finetune-gfx1151"]["tags"]
