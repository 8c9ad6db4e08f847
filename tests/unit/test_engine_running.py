"""What a container is asked to be, and how its end and its output are read."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune.engine import specs
from strix_finetune.engine.base import EngineInfo, Mount, RunRequest
from strix_finetune.engine.drivers import BOOT_LABEL, PID_LABEL, UID_LABEL, driver_labels, is_orphan
from strix_finetune.engine.running import FrameReader, archive
from strix_finetune.engine.specs import check, docker_spec, podman_spec
from strix_finetune.errors import InputError
from strix_finetune.show import command_line
from strix_finetune.signals import how_it_ended, signal_name

DOCKER = EngineInfo("docker", "27", "1.46", "unix:///s", rootless=False)
ROOTLESS = EngineInfo("podman", "5", "1.41", "unix:///s", rootless=True)
REQUEST = RunRequest("localhost/x:1", ("true",))


def test_mounts_never_make_folders(tmp_path: Path) -> None:
    request = replace(REQUEST, mounts=(Mount(str(tmp_path), "/data", read_only=True),))
    check(request)
    config = docker_spec(request, DOCKER, {}, init=True, terminal=False)["HostConfig"]
    assert "Binds" not in config
    assert config["Mounts"] == [{"Type": "bind", "Source": str(tmp_path), "Target": "/data", "ReadOnly": True}]
    assert config["Init"] is True
    assert config["AutoRemove"] is False
    spec = podman_spec(request, ROOTLESS, {}, init=True, terminal=False)
    assert spec["mounts"] == [
        {"type": "bind", "source": str(tmp_path), "destination": "/data", "options": ["rbind", "ro"]}
    ]


def test_what_would_fail_half_way_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing' does not exist and cannot be mounted at /data"):
        check(replace(REQUEST, mounts=(Mount(f"{tmp_path}/missing", "/data"),)))
    with pytest.raises(InputError, match="not an absolute path"):
        check(replace(REQUEST, mounts=(Mount("relative", "/data"),)))
    with pytest.raises(InputError, match="keep-groups cannot be combined"):
        check(replace(REQUEST, group_add=("keep-groups", "992")))
    with pytest.raises(InputError, match="numeric group id"):
        check(replace(REQUEST, group_add=("render",)))
    with pytest.raises(InputError, match="no device /dev/no-such-device"):
        check(replace(REQUEST, devices=("/dev/null", "/dev/no-such-device")))
    check(replace(REQUEST, group_add=("992", "44")))
    check(replace(REQUEST, group_add=("keep-groups",)))


def test_only_what_was_asked_for_is_in_a_specification() -> None:
    body = docker_spec(REQUEST, DOCKER, {"a": "b"}, init=True, terminal=False)
    assert body["Labels"] == {"a": "b"}
    assert body["Cmd"] == ["true"]
    assert not {"User", "WorkingDir", "Entrypoint"} & body.keys()
    assert body["HostConfig"].keys() == {"AutoRemove", "Mounts", "Devices", "GroupAdd", "Init"}
    spec = podman_spec(REQUEST, ROOTLESS, {"a": "b"}, init=True, terminal=False)
    assert not {"user", "work_dir", "netns", "userns", "shm_size", "annotations", "privileged"} & spec.keys()


def test_what_was_asked_for_is_said_to_each_engine() -> None:
    request = replace(
        REQUEST,
        env={"A": "b=c"},
        devices=("/dev/kfd",),
        shm_size=1 << 30,
        network="host",
        keep_id=True,
        group_add=("992",),
        user="1:2",
        workdir="/w",
        interactive=True,
    )
    body = docker_spec(request, DOCKER, {}, init=True, terminal=True)
    device = {"PathOnHost": "/dev/kfd", "PathInContainer": "/dev/kfd", "CgroupPermissions": "rwm"}
    host = body["HostConfig"]
    assert host["Devices"] == [device]
    assert (host["ShmSize"], host["NetworkMode"], host["GroupAdd"]) == (1 << 30, "host", ["992"])
    assert "UsernsMode" not in host
    assert (body["Env"], body["User"], body["WorkingDir"], body["Tty"]) == (["A=b=c"], "1:2", "/w", True)
    spec = podman_spec(request, ROOTLESS, {}, init=True, terminal=True)
    assert (spec["shm_size"], spec["netns"], spec["groups"]) == (1 << 30, {"nsmode": "host"}, ["992"])
    assert spec["userns"] == {"nsmode": "keep-id"}
    assert (spec["env"], spec["user"], spec["work_dir"], spec["terminal"]) == ({"A": "b=c"}, "1:2", "/w", True)
    assert "userns" not in podman_spec(request, replace(ROOTLESS, rootless=False), {}, init=True, terminal=True)


def test_keep_groups_is_an_annotation_for_podman_and_nothing_for_docker() -> None:
    request = replace(REQUEST, group_add=("keep-groups",))
    spec = podman_spec(request, ROOTLESS, {}, init=True, terminal=False)
    assert spec["groups"] == []
    assert spec["annotations"] == {"run.oci.keep_original_groups": "1"}
    with pytest.raises(InputError, match="Podman only"):
        docker_spec(request, DOCKER, {}, init=True, terminal=False)


def test_without_an_init_program_a_shell_is_process_1() -> None:
    command = podman_spec(replace(REQUEST, command=("a", "b c")), ROOTLESS, {}, init=False, terminal=False)["command"]
    assert command[0] == "/bin/sh"
    assert command[-2:] == ["a", "b c"]
    assert podman_spec(replace(REQUEST, command=()), ROOTLESS, {}, init=False, terminal=False)["command"] == []


def test_files_are_executable_and_bring_no_folder_entries() -> None:
    with tarfile.open(fileobj=io.BytesIO(archive({"/tmp/a/b.sh": b"hello", "c": b""}))) as tar:
        members = {member.name: (member.mode, member.uid, member.isfile()) for member in tar}
        handle = tar.extractfile("tmp/a/b.sh")
        assert handle is not None
        assert handle.read() == b"hello"
    assert members == {"c": (0o755, 0, True), "tmp/a/b.sh": (0o755, 0, True)}


@given(st.lists(st.binary(max_size=50), max_size=8), st.data())
def test_frames_are_taken_apart_however_they_were_cut(payloads: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(struct.pack(">BxxxL", 1 + n % 2, len(part)) + part for n, part in enumerate(payloads))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    seen: list[bytes] = []
    reader = FrameReader(seen.append)
    for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        reader.feed(raw[begin:end])
    assert b"".join(seen) == b"".join(payloads)


@pytest.mark.parametrize(
    ("code", "name"), [(0, ""), (1, ""), (128, ""), (139, "SIGSEGV"), (134, "SIGABRT"), (137, "SIGKILL"), (255, "")]
)
def test_signals_by_number(code: int, name: str) -> None:
    assert signal_name(code) == name


def test_how_it_ended_in_words() -> None:
    assert how_it_ended(3) == "failed with exit code 3"
    assert how_it_ended(139) == "was killed by SIGSEGV (exit code 139)"


def test_a_container_of_a_living_driver_is_no_orphan() -> None:
    assert not is_orphan(driver_labels(), running=True, age=1e6)


def test_a_container_of_another_user_is_not_ours_to_judge() -> None:
    labels = driver_labels() | {UID_LABEL: str(os.getuid() + 1), PID_LABEL: "999999999"}
    assert not is_orphan(labels, running=False, age=1e6)
    assert is_orphan(labels | {UID_LABEL: str(os.getuid())}, running=False, age=1e6)


def test_a_container_whose_driver_ended_is_an_orphan() -> None:
    code = "from strix_finetune.engine.drivers import driver_labels; import json; print(json.dumps(driver_labels()))"
    import json

    labels = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert labels[PID_LABEL] != str(os.getpid())
    assert is_orphan(labels, running=True, age=0)


def test_a_process_id_that_was_given_out_again_does_not_save_an_orphan() -> None:
    labels = driver_labels()
    boot = labels[BOOT_LABEL].rpartition("+")[0]
    assert is_orphan({**labels, BOOT_LABEL: f"{boot}+1"}, running=True, age=0)


def test_containers_of_another_boot_or_machine_are_left_alone_while_they_may_live() -> None:
    labels = {**driver_labels(), BOOT_LABEL: "another-boot.1+12345"}
    assert not is_orphan(labels, running=True, age=1e6)
    assert not is_orphan(labels, running=False, age=60)
    assert is_orphan(labels, running=False, age=7200)


def test_containers_without_our_labels_are_never_ours() -> None:
    assert not is_orphan({}, running=False, age=1e9)
    assert not is_orphan({PID_LABEL: "1"}, running=False, age=1e9)
    assert not is_orphan({PID_LABEL: "x", BOOT_LABEL: "a+b"}, running=False, age=1e9)


def test_selinux_leaves_a_container_alone_that_uses_files_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = replace(REQUEST, mounts=(Mount(str(tmp_path), "/data"),))

    def options(request: RunRequest) -> tuple[object, object, bool]:
        docker = docker_spec(request, DOCKER, {}, init=True, terminal=False)["HostConfig"].get("SecurityOpt")
        podman = podman_spec(request, ROOTLESS, {}, init=True, terminal=False).get("selinux_opts")
        return docker, podman, "label=disable" in command_line(request, DOCKER)

    monkeypatch.setattr(specs, "_SELINUX", tmp_path / "none")
    assert options(mounted) == (None, None, False)
    (tmp_path / "enforce").write_text("1")
    monkeypatch.setattr(specs, "_SELINUX", tmp_path / "enforce")
    assert options(mounted) == (["label=disable"], ["disable"], True)
    assert options(replace(REQUEST, devices=("/dev/null",))) == (["label=disable"], ["disable"], True)
    assert options(REQUEST) == (None, None, False)
