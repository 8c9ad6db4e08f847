"""The flags of a run, for every kind of engine and host."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from strix_finetune import cli, hostcdi, hostfacts
from strix_finetune.engine.base import EngineInfo, Mount
from strix_finetune.engine.specs import check, docker_spec, podman_spec
from strix_finetune.errors import InputError
from strix_finetune.launch import Host, Launch, Wishes, plan
from strix_finetune.paths import find
from strix_finetune.recipefacts import RecipeFacts
from strix_finetune.show import command_line

DOCKER = EngineInfo("docker", "20.10.24", "1.41", "unix:///x", rootless=False, runtime="runc")
DOCKER_CDI = EngineInfo("docker", "28.3.1", "1.51", "unix:///x", rootless=False, runtime="runc", cdi=True)
ROOTLESS_DOCKER = EngineInfo("docker", "27.0", "1.46", "unix:///x", rootless=True, runtime="runc")
PODMAN = EngineInfo("podman", "5.4.0", "1.41", "unix:///x", rootless=True, runtime="crun")
ROOTFUL_PODMAN = EngineInfo("podman", "4.3.1", "1.41", "unix:///x", rootless=False, runtime="runc")
ROOTLESS_RUNC = EngineInfo("podman", "4.3.1", "1.41", "unix:///x", rootless=True, runtime="runc")
GPU = ("/dev/kfd", "/dev/dri/renderD128")
ME = Path("/home/me")

ENV = {"TERM": "xterm", "LD_PRELOAD": "x.so", "HSA_OVERRIDE_GFX_VERSION": "11.0.0", "OMP_NUM_THREADS": "4"}
STRIX_UBUNTU = Host(
    uid=1000,
    gid=1001,
    home=ME,
    workdir=ME / "project",
    models=ME / ".cache/m",
    hub=ME / ".cache/h",
    compiled=ME / ".cache/c",
    env=ENV,
    devices=GPU,
    groups=("44", "992"),
)
# Fedora: devices are open to all, SELinux is enforcing
FEDORA = replace(STRIX_UBUNTU, groups=("105",), open_to_all=True, selinux=True)
FEDORA_ALLOWED = replace(FEDORA, selinux_devices=True)
NO_GPU = replace(STRIX_UBUNTU, devices=(), groups=(), env={})
FEDORA_NO_GPU = replace(FEDORA, devices=(), groups=())
WITH_CDI = replace(STRIX_UBUNTU, cdi=True)
CLUSTER = replace(STRIX_UBUNTU, rdma=("/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"), rdma_groups=("118",))
LITTLE_MEMLOCK = replace(CLUSTER, locked_memory=8 << 20)
AT_HOME = replace(FEDORA_ALLOWED, workdir=ME)
ROOT = replace(NO_GPU, uid=0, gid=0, home=Path("/root"), workdir=Path("/srv/work"))


def made(host: Host, engine: EngineInfo, *, wishes: Wishes | None = None, **more: object) -> Launch:
    return plan("i", ["train", "x"], host, engine, wishes=wishes or Wishes(), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "engine", "user", "keep_id", "groups", "devices"),
    [
        (STRIX_UBUNTU, DOCKER, "1000:1001", False, ("44", "992"), GPU),
        (STRIX_UBUNTU, ROOTLESS_DOCKER, "", False, ("44", "992"), GPU),
        (STRIX_UBUNTU, ROOTFUL_PODMAN, "1000:1001", False, ("44", "992"), GPU),
        (STRIX_UBUNTU, PODMAN, "", True, ("keep-groups",), GPU),
        # runc drops the groups, which only matters where they are needed
        (FEDORA, ROOTLESS_RUNC, "", True, (), GPU),
        (NO_GPU, PODMAN, "", True, (), ()),
        (NO_GPU, ROOTLESS_RUNC, "", True, (), ()),
        (NO_GPU, DOCKER, "1000:1001", False, (), ()),
        (ROOT, DOCKER, "0:0", False, (), ()),
        (WITH_CDI, DOCKER_CDI, "1000:1001", False, ("44", "992"), (hostcdi.ALL,)),
        (WITH_CDI, replace(DOCKER_CDI, cdi=False), "1000:1001", False, ("44", "992"), GPU),
        (WITH_CDI, DOCKER, "1000:1001", False, ("44", "992"), GPU),
        (WITH_CDI, PODMAN, "", True, ("keep-groups",), (hostcdi.ALL,)),
        (WITH_CDI, replace(PODMAN, version="3.4.4"), "", True, ("keep-groups",), GPU),
        (STRIX_UBUNTU, DOCKER_CDI, "1000:1001", False, ("44", "992"), GPU),
    ],
)
def test_who_runs_and_what_it_may_use(
    host: Host, engine: EngineInfo, user: str, keep_id: bool, groups: tuple[str, ...], devices: tuple[str, ...]
) -> None:
    request = made(host, engine).request
    assert (request.user, request.keep_id, request.group_add, request.devices) == (user, keep_id, groups, devices)


def test_a_runtime_that_would_drop_the_groups_is_refused() -> None:
    with pytest.raises(InputError, match=r"runc, the runtime of this rootless Podman, drops .* /dev/kfd; install crun"):
        made(STRIX_UBUNTU, ROOTLESS_RUNC)


def test_nothing_of_the_host_that_breaks_rocm_is_passed_on_and_that_is_said() -> None:
    launch = made(STRIX_UBUNTU, DOCKER, key="abc")
    env = launch.request.env
    assert env["OMP_NUM_THREADS"] == "4"
    assert env["STRIX_IMAGE_KEY"] == "abc"
    assert not {"LD_PRELOAD", "HSA_OVERRIDE_GFX_VERSION"} & set(env)
    assert launch.notes == ("HSA_OVERRIDE_GFX_VERSION, LD_PRELOAD of this shell are not passed on; --env does it",)
    assert "STRIX_IMAGE_KEY" not in made(STRIX_UBUNTU, DOCKER).request.env
    assert made(NO_GPU, DOCKER).notes == ()


def test_what_is_said_is_passed_on() -> None:
    said = Wishes(env={"LD_PRELOAD": "mine.so", "TRITON_CACHE_DIR": "/tmp/t", "OMP_NUM_THREADS": "8"})
    launch = made(STRIX_UBUNTU, DOCKER, wishes=said)
    assert {name: launch.request.env[name] for name in said.env} == said.env
    assert launch.notes == ("HSA_OVERRIDE_GFX_VERSION of this shell is not passed on; --env does it",)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("HF_TOKEN=hf_secret", "HF_TOKEN would be seen by everybody who may look; export it, it goes as a file"),
        ("STRIX_NO_SUCH", "STRIX_NO_SUCH is not set here"),
        ("a b=c", "'a b=c' is neither NAME nor NAME=VALUE"),
    ],
)
def test_variables_that_are_refused(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--env", word, "--", "x"]) == 2
    assert said in capsys.readouterr().err


def test_the_token_is_a_file_and_in_no_variable() -> None:
    host = replace(NO_GPU, token=Path("/run/user/1000/.t"), env={"HF_TOKEN": "hf_secret"})
    launch = made(host, DOCKER)
    assert Mount("/run/user/1000/.t", "/run/strix-finetune/hf-token", read_only=True) in launch.request.mounts
    assert launch.request.env["HF_TOKEN_PATH"] == "/run/strix-finetune/hf-token"
    assert "hf_secret" not in repr(launch) + " ".join(command_line(launch.request, DOCKER))


def test_shared_memory_has_a_size_or_is_the_host_s() -> None:
    request = made(NO_GPU, DOCKER).request
    assert (request.shm_size, request.ipc) == (8 << 30, "")
    request = made(NO_GPU, DOCKER, wishes=Wishes(shm=0)).request
    assert (request.shm_size, request.ipc) == (None, "host")
    with pytest.raises(InputError, match="exclude each other"):
        check(replace(request, mounts=(), shm_size=1))


def test_rdma_brings_adapters_their_group_the_network_and_locked_memory() -> None:
    request = made(CLUSTER, DOCKER, wishes=Wishes(rdma=True)).request
    assert request.devices == (*GPU, "/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0")
    assert (request.group_add, request.network, request.memlock) == (("118", "44", "992"), "host", -1)
    line = command_line(request, DOCKER)
    assert line[line.index("--ulimit") + 1] == "memlock=-1:-1"
    assert docker_spec(request, DOCKER, {}, init=True, terminal=False)["HostConfig"]["Ulimits"] == [
        {"Name": "memlock", "Soft": -1, "Hard": -1}
    ]
    told = podman_spec(request, PODMAN, {}, init=True, terminal=False)["r_limits"]
    assert told[0] == {"type": "memlock", "soft": 2**64 - 1, "hard": 2**64 - 1}
    assert [limit["type"] for limit in told[1:]] == ["nofile", "nproc"]
    assert "r_limits" not in podman_spec(made(CLUSTER, PODMAN).request, PODMAN, {}, init=True, terminal=False)
    assert made(CLUSTER, DOCKER).request.memlock is None
    with pytest.raises(InputError, match="no /dev/infiniband"):
        made(STRIX_UBUNTU, DOCKER, wishes=Wishes(rdma=True))


def test_rdma_of_a_rootless_engine_cannot_lock_more_than_the_user() -> None:
    with pytest.raises(InputError, match=r"may lock 8 MiB .*; set memlock to unlimited"):
        made(LITTLE_MEMLOCK, PODMAN, wishes=Wishes(rdma=True))
    assert made(CLUSTER, PODMAN, wishes=Wishes(rdma=True)).request.group_add == ("keep-groups",)
    assert made(LITTLE_MEMLOCK, DOCKER, wishes=Wishes(rdma=True)).request.memlock == -1


@pytest.mark.parametrize(
    ("host", "unconfined", "labelled"),
    [
        (STRIX_UBUNTU, None, False),
        (FEDORA_NO_GPU, False, True),
        (FEDORA_ALLOWED, False, True),
        # the policy keeps containers from devices: labels would not help
        (FEDORA, True, False),
        # a home that is labelled for containers locks its owner out
        (AT_HOME, True, False),
        (replace(FEDORA_NO_GPU, workdir=Path("/usr/share/x")), True, False),
        (replace(FEDORA_NO_GPU, workdir=Path("/home")), True, False),
        # as for the project, so for the caches, which variables may put anywhere
        (replace(FEDORA_NO_GPU, hub=ME), True, False),
        (replace(FEDORA_NO_GPU, models=Path("/usr/share/models")), True, False),
        (replace(FEDORA_NO_GPU, foreign=(ME / "project",)), True, False),
    ],
)
def test_selinux_labels_projects_only_and_never_a_home(host: Host, unconfined: bool | None, labelled: bool) -> None:
    launch = made(host, PODMAN)
    assert launch.request.unconfined is unconfined
    assert {mount.relabel for mount in launch.request.mounts} == {labelled}
    assert ("label=disable" in " ".join(command_line(launch.request, PODMAN))) is bool(unconfined)
    assert any("label=disable" in note for note in launch.notes) is bool(unconfined)


def test_what_keeps_its_label_is_named() -> None:
    rows = Path("/data/rows.jsonl")
    recipe = RecipeFacts("x", reads=(rows,))
    launch = made(replace(FEDORA_NO_GPU, foreign=(rows,)), PODMAN, recipe=recipe)
    assert "SELinux does not separate this container (label=disable): /data/rows.jsonl must keep its label" in (
        launch.notes
    )
    assert not [mount for mount in launch.request.mounts if mount.relabel]
    assert any("keeps the GPU from containers" in note for note in made(FEDORA, PODMAN).notes)
    # beside a home that is mounted nothing else is labelled, either
    assert not [mount for mount in made(AT_HOME, PODMAN).request.mounts if mount.relabel]


def test_whose_a_path_is(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    rows = tmp_path / "rows"
    rows.touch()
    host = replace(NO_GPU, workdir=tmp_path / "project", uid=os.getuid() + 1)
    recipe = RecipeFacts("x", reads=(rows,), writes=(tmp_path / "not yet",))
    assert hostfacts.foreign(host, recipe) == (tmp_path / "project", rows)
    assert hostfacts.foreign(replace(host, uid=0), recipe) == ()
    mine = replace(host, uid=os.getuid()) if os.getuid() else replace(host, uid=0)
    assert hostfacts.foreign(mine, recipe) == ()


def test_labels_in_each_engine_s_words() -> None:
    request = made(FEDORA_NO_GPU, DOCKER).request
    spec = docker_spec(request, DOCKER, {}, init=True, terminal=False)["HostConfig"]
    assert "/home/me/project:/home/me/project:rw,z" in spec["Binds"]
    assert spec["Mounts"] == []
    assert "SecurityOpt" not in spec
    mounts = podman_spec(request, PODMAN, {}, init=True, terminal=False)["mounts"]
    assert {tuple(mount["options"]) for mount in mounts} == {("rbind", "rw", "z"), ("rbind", "ro", "z")}
    assert "/home/me/project:/home/me/project:z" in command_line(request, DOCKER)
    with pytest.raises(InputError, match=r"'/a:b' holds a ':'"):
        docker_spec(replace(request, mounts=(Mount("/a:b", "/x", relabel=True),)), DOCKER, {}, init=True, terminal=True)


def test_devices_by_name_in_each_engine_s_words() -> None:
    request = made(WITH_CDI, DOCKER_CDI).request
    check(replace(request, mounts=()))
    spec = docker_spec(request, DOCKER_CDI, {}, init=True, terminal=False)["HostConfig"]
    assert spec["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": ["amd.com/gpu=all"]}]
    assert spec["Devices"] == []
    assert podman_spec(request, PODMAN, {}, init=True, terminal=False)["devices"] == [{"path": "amd.com/gpu=all"}]


def test_the_current_folder_is_mounted_at_its_own_path_and_others_only_as_needed() -> None:
    recipe = RecipeFacts(
        "x",
        reads=(Path("/data/rows.jsonl"), ME / "project/sub/r.yaml", Path("/data/rows.jsonl"), Path("/runs/old/model")),
        writes=(Path("/runs/new"),),
    )
    launch = made(replace(NO_GPU, workdir=ME / "project"), DOCKER, recipe=recipe)
    assert launch.request.workdir == "/home/me/project"
    mounts = {mount.target: mount for mount in launch.request.mounts}
    assert mounts["/home/me/project"] == Mount("/home/me/project", "/home/me/project")
    assert mounts["/data/rows.jsonl"].read_only
    assert not mounts["/runs/new"].read_only
    assert not [target for target in mounts if target.endswith("r.yaml")]
    assert len(mounts) == len(launch.request.mounts) == 7
    assert Path("/runs/new") in launch.folders


def test_an_inner_mount_comes_after_the_outer_one() -> None:
    recipe = RecipeFacts("x", reads=(Path("/data"),), writes=(Path("/data/runs/a"),))
    targets = [mount.target for mount in made(NO_GPU, DOCKER, recipe=recipe).request.mounts]
    assert targets.index("/data") < targets.index("/data/runs/a")


def test_compiled_kernels_and_the_hub_outlive_the_container() -> None:
    request = made(NO_GPU, DOCKER).request
    targets = {mount.target: mount.read_only for mount in request.mounts}
    assert (targets["/models"], targets["/hub"], targets["/cache"]) == (True, False, False)
    assert request.env["HF_HOME"] == "/hub"
    assert request.env["TRITON_CACHE_DIR"] == "/cache/triton"
    assert request.env["XDG_CACHE_HOME"] == "/cache"


def test_what_is_printed_is_what_would_be_run() -> None:
    launch = plan("image", ["train", "r.yaml"], replace(STRIX_UBUNTU, interactive=True), DOCKER)
    line = command_line(launch.request, DOCKER)
    assert line[:5] == ["docker", "run", "--rm", "--init", "-it"]
    assert line[line.index("992") - 1 : line.index("992") + 1] == ["--group-add", "992"]
    assert "--privileged" not in line
    assert not [word for word in line if "seccomp" in word]
    assert line[-3:] == ["image", "train", "r.yaml"]
    assert "--userns" in command_line(made(STRIX_UBUNTU, PODMAN).request, PODMAN)
    with pytest.raises(InputError, match="'/a,b' holds a sign"):
        command_line(replace(launch.request, mounts=(Mount("/a,b", "/x"),)), DOCKER)


def test_a_specification_of_devices_is_used_when_all_that_it_names_is_there(tmp_path: Path) -> None:
    spec = {
        "cdiVersion": "0.6.0",
        "kind": "amd.com/gpu",
        "devices": [
            {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/kfd"}, {"path": "/dev/dri/renderD128"}]}},
            {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/kfd"}]}},
        ],
    }
    assert not hostcdi.usable(tmp_path)
    folder = tmp_path / "var/run/cdi"
    folder.mkdir(parents=True)
    (folder / "broken.json").write_text("{")
    (folder / "amd.json").write_text(json.dumps(spec))
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/kfd").touch()
    assert not hostcdi.usable(tmp_path), "renderD128 is not there"
    (tmp_path / "dev/dri/renderD128").touch()
    assert hostcdi.usable(tmp_path)
    (folder / "amd.json").write_text(json.dumps(spec | {"kind": "vendor.com/gpu"}))
    assert not hostcdi.usable(tmp_path)
    (folder / "amd.json").unlink()
    etc = tmp_path / "etc/cdi"
    etc.mkdir(parents=True)
    nodes = "[{path: /dev/kfd}]"
    (etc / "amd.yaml").write_text(
        f"kind: amd.com/gpu\ndevices:\n- name: all\n  containerEdits: {{deviceNodes: {nodes}}}\n"
    )
    assert hostcdi.usable(tmp_path)


def test_a_fake_host_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev/dri").mkdir(parents=True)
    for name in ("dev/kfd", "dev/dri/renderD128"):
        (tmp_path / name).touch(0o660)
    (tmp_path / "sys/fs/selinux/booleans").mkdir(parents=True)
    (tmp_path / "sys/fs/selinux/enforce").write_text("1")
    (tmp_path / "sys/fs/selinux/booleans/container_use_devices").write_text("1 1")
    monkeypatch.chdir(tmp_path)
    env = {"HOME": str(tmp_path / "home")}
    host = hostfacts.read(env, target="gfx1151", interactive=False, root=tmp_path)
    assert host.devices == (str(tmp_path / "dev/kfd"), str(tmp_path / "dev/dri/renderD128"))
    assert (host.selinux, host.selinux_devices, host.open_to_all, host.cdi, host.rdma) == (True, True, False, False, ())
    assert host.hub == tmp_path / "home/.cache/huggingface"
    assert hostfacts.read(env, target="", interactive=False, root=tmp_path).devices == ()
    (tmp_path / "dev/kfd").chmod(0o666)
    (tmp_path / "dev/dri/renderD128").chmod(0o666)
    assert hostfacts.read(env, target="gfx1151", interactive=False, root=tmp_path).open_to_all
    with pytest.raises(InputError, match="HF_TOKEN_PATH names /nowhere/token, which is not a file"):
        hostfacts.read(env | {"HF_TOKEN_PATH": "/nowhere/token"}, target="", interactive=False)


def test_the_token_s_file_is_the_caller_s_alone_and_goes(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "HF_TOKEN": " hf_secret\n", "XDG_RUNTIME_DIR": str(tmp_path)}
    left = tmp_path / ".strix-hf-token.1.999999999.part"
    left.write_text("of a driver that was killed")
    with hostfacts.token(env, find(env)) as path:
        assert path
        assert path.read_text() == "hf_secret"
        assert path.stat().st_mode & 0o777 == 0o600
        assert not left.exists()
    assert not path.exists()
    with hostfacts.token({"HOME": str(tmp_path)}, find(env)) as none:
        assert none is None


@pytest.mark.parametrize("engine", [DOCKER, ROOTLESS_DOCKER, PODMAN, ROOTFUL_PODMAN])
def test_a_port_is_published_to_this_machine_alone(engine: EngineInfo) -> None:
    request = made(NO_GPU, engine, port=8899).request
    assert request.publish == (8899,)
    if engine.kind == "docker":
        spec = docker_spec(request, engine, {}, init=True, terminal=False)
        assert spec["HostConfig"]["PortBindings"] == {"8899/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8899"}]}
        assert spec["ExposedPorts"] == {"8899/tcp": {}}
    else:
        [mapping] = podman_spec(request, engine, {}, init=True, terminal=False)["portmappings"]
        assert mapping == {"host_ip": "127.0.0.1", "host_port": 8899, "container_port": 8899, "protocol": "tcp"}
    words = command_line(request, engine)
    assert words[words.index("--publish") + 1] == "127.0.0.1:8899:8899"


@pytest.mark.parametrize("engine", [DOCKER, PODMAN])
def test_without_a_wish_no_port_is_published(engine: EngineInfo) -> None:
    request = made(NO_GPU, engine).request
    spec = docker_spec if engine.kind == "docker" else podman_spec
    words = json.dumps(spec(request, engine, {}, init=True, terminal=False)) + " ".join(command_line(request, engine))
    assert not {"PortBindings", "ExposedPorts", "portmappings", "--publish"} & set(words.replace('"', " ").split())
