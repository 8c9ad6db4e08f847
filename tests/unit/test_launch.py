"""The flags of a run, for every kind of engine and host."""

from __future__ import annotations

from pathlib import Path

import pytest

from strix_finetune.engine.base import EngineInfo, Mount
from strix_finetune.errors import InputError
from strix_finetune.launch import Host, recipe_argument, request
from strix_finetune.show import command_line

DOCKER = EngineInfo("docker", "20.10", "1.41", "unix:///x", rootless=False)
PODMAN = EngineInfo("podman", "4.3", "1.41", "unix:///x", rootless=True)
GPU = ("/dev/kfd", "/dev/dri/renderD128")


def host(**more: object) -> Host:
    values: dict[str, object] = {
        "uid": 1000,
        "gid": 1001,
        "workdir": Path("/home/me/project"),
        "models": Path("/home/me/.cache/m"),
        "hub": Path("/home/me/.cache/h"),
        "env": {"TERM": "xterm", "LD_PRELOAD": "x.so", "HSA_OVERRIDE_GFX_VERSION": "11.0.0", "OMP_NUM_THREADS": "4"},
        "devices": GPU,
        "groups": ("44", "992"),
    }
    return Host(**(values | more))  # type: ignore[arg-type]


def test_docker_gets_numeric_groups_and_the_callers_id() -> None:
    made = request("i", ["train", "x"], host(), DOCKER)
    assert (made.user, made.keep_id) == ("1000:1001", False)
    assert made.group_add == ("44", "992")
    assert made.devices == GPU


def test_rootless_podman_gets_keep_groups_alone() -> None:
    made = request("i", ["train"], host(), PODMAN)
    assert (made.user, made.keep_id, made.group_add) == ("", True, ("keep-groups",))
    assert request("i", ["train"], host(devices=(), groups=()), PODMAN).group_add == ()


def test_nothing_of_the_host_that_breaks_rocm_is_passed_on() -> None:
    env = request("i", ["train"], host(), DOCKER, key="abc").env
    assert env["OMP_NUM_THREADS"] == "4"
    assert env["STRIX_IMAGE_KEY"] == "abc"
    assert not {"LD_PRELOAD", "HSA_OVERRIDE_GFX_VERSION"} & set(env)
    assert "STRIX_IMAGE_KEY" not in request("i", ["train"], host(), DOCKER).env


def test_the_current_folder_is_mounted_at_its_own_path_and_others_read_only() -> None:
    made = request("i", ["x"], host(), DOCKER, [Path("/data"), Path("/home/me/project/sub"), Path("/data")])
    assert made.workdir == "/home/me/project"
    assert made.mounts[0] == Mount("/home/me/project", "/home/me/project")
    assert [mount for mount in made.mounts if mount.source == "/data"] == [Mount("/data", "/data", read_only=True)]
    assert not [mount for mount in made.mounts if mount.source.endswith("sub")]


def test_what_is_printed_is_what_would_be_run() -> None:
    line = command_line(request("image", ["train", "r.yaml"], host(interactive=True), DOCKER), DOCKER)
    assert line[:4] == ["docker", "run", "--rm", "-it"]
    assert line[line.index("992") - 1 : line.index("992") + 1] == ["--group-add", "992"]
    assert "--privileged" not in line
    assert not [word for word in line if "seccomp" in word]
    assert line[-3:] == ["image", "train", "r.yaml"]
    assert "--userns" in command_line(request("i", ["x"], host(), PODMAN), PODMAN)


def test_a_recipe_is_a_file_of_the_user_or_a_name_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("")
    assert recipe_argument("mine.yaml", tmp_path) == (str(tmp_path / "mine.yaml"), (tmp_path,))
    assert recipe_argument("demo", tmp_path) == ("/opt/strix-finetune/recipes/demo.yaml", ())
    with pytest.raises(InputError, match=r"other\.yaml: the recipe does not exist"):
        recipe_argument("other.yaml", tmp_path)
