"""Emitted definitions, read by a parser of each format; and files that are not overwritten."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from strix_finetune import hostgpu
from strix_finetune.caches import CACHES, TOKEN
from strix_finetune.cli import main
from strix_finetune.emit import KINDS, Emitted, Values, edited, render
from strix_finetune.emitted import write
from strix_finetune.errors import InputError, TemplateError
from strix_finetune.paths import find

FOLDER = find({}).toolbox
IMAGE = "localhost/strix-finetune:gfx1151"
REMOTE = "registry.example.org/me/strix-finetune:gfx1151"


def text(kind: str, **more: Any) -> str:
    values = {"image": IMAGE, "groups": ("44", "992"), "user": "1000:1001", "project": "/home/me/a project"} | more
    return render(kind, Values(**values), FOLDER)[0].text


def unit(text: str) -> dict[str, dict[str, list[str]]]:
    """A unit of systemd: sections of keys, each with all its values in order."""
    found: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in text.splitlines():
        if not line or line[0] in "#;":
            continue
        if header := re.fullmatch(r"\[(\w+)\]", line):
            section = header[1]
            continue
        key, equals, value = line.partition("=")
        assert equals, line
        found.setdefault(section, {}).setdefault(key, []).append(value)
    return found


def ran(script: str, tmp_path: Path, *arguments: str, env: dict[str, str] | None = None) -> list[str]:
    """What the script gives to the engine: argv, from a program that stands in for it."""
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("docker", "podman"):
        (tools / name).write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
        (tools / name).chmod(0o755)
    project = tmp_path / "a project"
    project.mkdir(exist_ok=True)
    known = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tmp_path / "home"), **(env or {})}
    done = subprocess.run(
        ["sh", "-c", script, "emitted", *arguments], cwd=project, env=known, capture_output=True, text=True, check=True
    )
    return done.stdout.split("\0")[:-1]


def after(argv: list[str], flag: str) -> list[str]:
    return [argv[at + 1] for at, word in enumerate(argv) if word == flag]


@pytest.mark.parametrize("kind", KINDS)
def test_every_definition_says_whose_it_is_and_knows_when_it_was_edited(kind: str) -> None:
    made = text(kind, gtt=96)
    assert not edited(made)
    assert f"strix-finetune emit {kind}, digest " in made.split("\n\n")[0]
    assert edited(made + "\n")
    assert edited(made.replace("#", "# mine", 1) if made.startswith("#!") else "x" + made[1:])
    assert "@mark@" not in made
    assert not [line for line in made.splitlines() if line != line.rstrip()]


def test_the_distrobox_section_gives_no_flag_that_changes_nothing() -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(text("distrobox", name="mine"))
    assert parser.sections() == ["mine"]
    assert parser["mine"]["image"] == IMAGE
    assert parser["mine"]["pull"] == "false"
    assert "additional_flags" not in parser["mine"]
    parser.read_string(text("distrobox", name="rdma", rdma=True))
    assert parser["rdma"]["additional_flags"] == '"--ulimit memlock=-1:-1"'


def test_a_local_quadlet_is_never_pulled_and_a_remote_one_has_an_image_unit() -> None:
    made = render("quadlet", Values(IMAGE, project="/home/me/a project"), FOLDER)
    assert [file.name for file in made] == ["strix-finetune.container"]
    container = unit(made[0].text)["Container"]
    assert (container["Image"], container["Pull"]) == ([IMAGE], ["never"])
    assert container["AddDevice"] == ["/dev/kfd", "/dev/dri"]
    assert (container["GroupAdd"], container["UserNS"], container["ShmSize"]) == (["keep-groups"], ["keep-id"], ["8g"])
    assert container["Volume"][0] == "/home/me/a project:/home/me/a project"
    assert "Needs Podman 5.1 or later" in made[0].text
    container_file, image_file = render("quadlet", Values(REMOTE, name="a", project="/p"), FOLDER)
    assert unit(container_file.text)["Container"]["Image"] == ["a.image"]
    assert unit(image_file.text)["Image"]["Image"] == [REMOTE]
    assert image_file.name == "a.image"


def test_a_quadlet_with_a_command_is_a_job() -> None:
    made = unit(text("quadlet", command=("train", "a b.yaml", "--set", 'x=100% "$y"')))
    assert made["Service"]["Type"] == ["oneshot"]
    assert made["Container"]["Exec"] == [r'train "a b.yaml" --set "x=100%% \"$$y\""']
    # pulling is the other unit's, so nothing limits how long a run takes
    assert "TimeoutStartSec" not in unit(text("quadlet", image=REMOTE, command=("train",)))["Service"]
    assert "Type" not in unit(text("quadlet"))["Service"]


def test_a_compose_file_asks_for_what_the_launcher_asks_for() -> None:
    document = yaml.safe_load(text("compose", name="mine", token="/home/me/token", rdma=True, selinux=True))
    service = document["services"]["mine"]
    assert service["devices"] == [f"{name}:{name}" for name in ("/dev/kfd", "/dev/dri", "/dev/infiniband")]
    assert service["group_add"] == ["44", "992"]
    assert service["user"] == "1000:1001"
    assert service["shm_size"] == "8gb"
    assert "ipc" not in service
    assert service["ulimits"] == {"memlock": {"soft": -1, "hard": -1}}
    assert service["secrets"] == [{"source": "hf-token", "target": TOKEN}]
    assert document["secrets"] == {"hf-token": {"file": "/home/me/token"}}
    assert service["environment"]["HF_TOKEN_PATH"] == TOKEN
    assert all(volume["bind"] == {"create_host_path": False} for volume in service["volumes"])
    assert service["volumes"][0]["source"] == service["working_dir"] == "/home/me/a project"
    plain = yaml.safe_load(text("compose", project="", gpu=False, groups=()))["services"]["strix-finetune"]
    assert not {"devices", "group_add", "secrets", "ulimits", "security_opt"} & set(plain)
    assert plain["volumes"][0]["source"] == "."
    podman = yaml.safe_load(text("compose", engine="podman"))["services"]["strix-finetune"]
    assert (podman["group_add"], podman["userns_mode"]) == (["keep-groups"], "keep-id")
    assert "user" not in podman


def test_a_command_in_a_compose_file_has_no_variables() -> None:
    made = yaml.safe_load(text("compose", command=("sh", "-c", "echo $HOME: é")))
    assert made["services"]["strix-finetune"]["command"] == ["sh", "-c", "echo $$HOME: é"]


Words = Annotated[str, StringConstraints(min_length=1)]


class DevContainer(BaseModel):
    """What we use of the schema of devcontainer.json (containers.dev, reference of properties)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Words
    image: Words
    run_args: list[Words] = Field(alias="runArgs")
    mounts: list[Annotated[str, StringConstraints(pattern=r"^type=bind,source=[^,]+,target=/[^,]+(,readonly)?$")]]
    initialize_command: Words = Field(alias="initializeCommand")
    container_env: dict[str, str] = Field(alias="containerEnv")
    container_user: Words = Field(alias="containerUser")
    remote_user: Words = Field(alias="remoteUser")
    update_remote_user_uid: bool = Field(alias="updateRemoteUserUID")
    customizations: dict[str, dict[str, Any]]


@pytest.mark.parametrize("more", [{}, {"token": "/home/me/token"}, {"engine": "podman", "rdma": True, "selinux": True}])
def test_a_devcontainer_is_what_the_schema_allows(more: dict[str, Any]) -> None:
    made = text("devcontainer", **more)
    # comments are whole lines: JSON with comments needs no more
    found = DevContainer.model_validate(json.loads(re.sub(r"^\s*//.*$", "", made, flags=re.M)))
    assert found.container_user == found.remote_user == "1000:1001"
    groups = [word for word in found.run_args if word.startswith("--group-add")]
    if more.get("engine") == "podman":
        assert groups == ["--group-add=keep-groups"]
        assert {"--userns=keep-id", "--security-opt=label=disable", "--ulimit=memlock=-1:-1"} <= set(found.run_args)
    else:
        assert groups == ["--group-add=44", "--group-add=992"]
    assert "--shm-size=8g" in found.run_args
    assert ("HF_TOKEN_PATH" in found.container_env) == ("token" in more) == (len(found.mounts) == len(CACHES) + 1)


def test_the_docker_line_finds_the_groups_by_itself(tmp_path: Path) -> None:
    script = text("docker", project="", user="", groups=(), devices=("/dev/null", "/dev/ptmx"))
    argv = ran(script, tmp_path, "train", "a b.yaml")
    assert argv[:2] == ["run", "--rm"]
    assert "-it" not in argv
    assert after(argv, "--user") == [f"{os.getuid()}:{os.getgid()}"]
    assert after(argv, "--device") == ["/dev/null", "/dev/ptmx"]
    owner = Path("/dev/ptmx").stat().st_gid
    # root's group is given to nobody
    assert after(argv, "--group-add") == [str(owner)] * bool(owner)
    project = tmp_path / "a project"
    assert after(argv, "--mount")[0] == f"type=bind,source={project},target={project}"
    assert after(argv, "--workdir") == [str(project)]
    assert argv[-3:] == [IMAGE, "train", "a b.yaml"]
    # made by the caller, before the engine would
    assert (tmp_path / "home/.cache/huggingface").is_dir()
    assert (tmp_path / "home/.cache/strix-finetune/models").is_dir()


def test_what_is_given_is_used_instead(tmp_path: Path) -> None:
    script = text("docker", devices=("/dev/null",), rdma=True, selinux=True, token="/t", shm=2, command=("train", "x"))
    argv = ran(script, tmp_path, env={"HF_HOME": str(tmp_path / "hub")})
    assert after(argv, "--group-add") == ["44", "992"]
    assert after(argv, "--user") == ["1000:1001"]
    assert after(argv, "--shm-size") == ["2g"]
    assert after(argv, "--ulimit") == ["memlock=-1:-1"]
    assert after(argv, "--security-opt") == ["label=disable"]
    assert f"type=bind,source={tmp_path}/hub,target=/hub" in after(argv, "--mount")
    assert f"type=bind,source=/t,target={TOKEN},readonly" in after(argv, "--mount")
    assert argv[-2:] == ["train", "x"]


def test_an_image_of_a_registry_may_be_pulled(tmp_path: Path) -> None:
    assert after(ran(text("docker", devices=("/dev/null",)), tmp_path), "--pull") == ["never"]
    assert after(ran(text("docker", image=REMOTE, devices=("/dev/null",)), tmp_path), "--pull") == []


def test_podman_keeps_groups_alone_and_only_without_root(tmp_path: Path) -> None:
    script = text("podman", engine="podman", devices=("/dev/null",), groups=(), user="")
    for uid, expected in ((1000, ["keep-groups"]), (0, [])):
        # the script asks id: who runs the test does not matter
        argv = ran(f"id() {{ echo {uid}; }}\n{script.replace('exec ', '')}", tmp_path)
        assert after(argv, "--group-add") == expected
        assert after(argv, "--userns") == (["keep-id"] if uid else [])
        assert after(argv, "--device") == ["/dev/null"]
        assert argv[-2:] == ["bash", "-l"]
    assert "--device" not in ran(text("podman", engine="podman", gpu=False), tmp_path)


def test_wsl_reaches_the_gpu_by_dxg(tmp_path: Path) -> None:
    script = text("wsl", project="", groups=())
    argv = ran(script, tmp_path, env={"ROCDXG": "/nonexistent/librocdxg.so"})
    assert after(argv, "--device") == ["/dev/dxg"]
    assert "HSA_ENABLE_DXG_DETECTION=1" in after(argv, "--env")
    assert not [word for word in argv if "rocdxg" in word]
    library = tmp_path / "librocdxg.so"
    library.touch()
    argv = ran(script, tmp_path, env={"ROCDXG": str(library)})
    for inside in ("/usr/lib/librocdxg.so", "/usr/lib/librocdxg.so.1"):
        assert f"type=bind,source={library},target={inside},readonly" in after(argv, "--mount")


def rules(access: str) -> list[dict[str, str]]:
    lines = [line for line in text("udev", access=access).splitlines() if line and not line.startswith("#")]
    pattern = r'(\w+(?:\{\w+\})?)(==|\+=|=)"([^"]*)"'
    for line in lines:
        assert re.fullmatch(rf"{pattern}(?:, {pattern})*", line), line
    return [{key + operator: value for key, operator, value in re.findall(pattern, line)} for line in lines]


def test_udev_rules_give_the_access_that_was_asked_for() -> None:
    for access, expected in (
        ("group", {"GROUP=": "render", "MODE=": "0660"}),
        ("seat", {"GROUP=": "render", "MODE=": "0660", "TAG+=": "uaccess"}),
        ("everybody", {"MODE=": "0666"}),
    ):
        kfd, render_node = rules(access)
        assert kfd == {"KERNEL==": "kfd", "SUBSYSTEM==": "kfd", **expected}
        assert render_node == {"KERNEL==": "renderD*", "SUBSYSTEM==": "drm", **expected}
        assert ("The trade-off" in text("udev", access=access)) == (access != "group")


def test_modprobe_counts_pages_of_4_kib() -> None:
    lines = [line for line in text("modprobe", gtt=112, module="amdttm").splitlines() if not line.startswith("#")]
    assert lines == [f"options amdttm pages_limit={112 * 2**30 // 4096}"]
    with pytest.raises(InputError, match="give --gtt"):
        text("modprobe")


def test_toolbox_configuration_is_toml() -> None:
    assert tomllib.loads(text("toolbox")) == {"general": {"image": IMAGE}}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"image": "a b"}, "no name of an image"),
        ({"image": "x;rm"}, "no name of an image"),
        ({"name": "-x"}, "no name of a container"),
        ({"name": "a]\n[b"}, "no name of a container"),
        ({"project": "/a,b"}, "no mount can hold"),
        ({"token": "/a:b"}, "no mount can hold"),
        ({"project": "/$(id)"}, "no mount can hold"),
        ({"devices": ("/etc/passwd",)}, "no device file"),
        ({"devices": ("/dev/x y",)}, "no device file"),
        ({"command": ("a\nb",)}, "control character"),
        ({"groups": ()}, "give --group"),
    ],
)
def test_what_a_definition_cannot_hold_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        text("compose", **more)


def test_a_fault_in_a_template_has_its_place(tmp_path: Path) -> None:
    for template, said in (("# {{ mark }}\n{{ nam }}", "'nam' is undefined"), ("# {{ mark }}\n{% if %}", ":2:")):
        (tmp_path / "toolbox.conf.j2").write_text(template)
        with pytest.raises(TemplateError, match=said) as caught:
            render("toolbox", Values(IMAGE), tmp_path)
        assert "toolbox.conf.j2" in str(caught.value)


def test_a_file_of_somebody_else_is_not_overwritten(tmp_path: Path) -> None:
    made = render("quadlet", Values(REMOTE, project="/p"), FOLDER)
    first, second = tmp_path / "x.container", tmp_path / "x.image"
    assert write(made, first) == (first, second)
    newer = render("quadlet", Values(REMOTE, project="/other"), FOLDER)
    assert write(newer, first) == (first, second)
    assert first.read_text() == newer[0].text
    second.write_text(newer[1].text + "# mine\n")
    with pytest.raises(InputError, match=r"x\.image: .*--force"):
        write(made, first)
    # all or none
    assert first.read_text() == newer[0].text
    assert write(made, first, force=True) == (first, second)
    assert second.read_text() == made[1].text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.container", "x.image"]


def test_where_a_file_goes(tmp_path: Path) -> None:
    script = render("docker", Values(IMAGE), FOLDER)
    assert write(script, tmp_path) == (tmp_path / "strix-finetune.sh",)
    assert os.access(tmp_path / "strix-finetune.sh", os.X_OK)
    compose = (Emitted(".yaml", "compose.yaml", "a"),)
    with pytest.raises(InputError, match="there is no folder"):
        write(compose, tmp_path / "not/there.yaml")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="--force"):
        write(compose, tmp_path / "link")
    pair = render("quadlet", Values(REMOTE, project="/p"), FOLDER)
    with pytest.raises(InputError, match=r"end it in \.container"):
        write(pair, tmp_path / "x.service")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "strix-finetune.sh"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["emit", "quadlet", "-t", "gfx1151", "--image", REMOTE]) == 0
    said = capsys.readouterr().out
    assert f"Volume={tmp_path}:{tmp_path}" in said
    assert re.findall(r"^# file: (\S+)$", said, re.M) == ["strix-finetune.container", "strix-finetune.image"]
    assert main(["emit", "quadlet", "-t", "gfx1151", "--image", REMOTE, "-o", "work.container"]) == 0
    assert unit((tmp_path / "work.container").read_text())["Container"]["Image"] == ["work.image"]
    assert (tmp_path / "work.image").is_file()
    assert main(["emit", "quadlet", "-t", "gfx1151", "--name", "a", "-o", "work.container"]) == 2
    assert "leave --name a out" in capsys.readouterr().err
    assert main(["emit", "compose", "-t", "cpu", "-o", "compose.yaml"]) == 0
    assert yaml.safe_load((tmp_path / "compose.yaml").read_text())["services"]["strix-finetune"]["image"].endswith(
        ":cpu"
    )
    (tmp_path / "compose.yaml").write_text("mine")
    capsys.readouterr()
    assert main(["emit", "compose", "-t", "cpu", "-o", "compose.yaml"]) == 2
    assert "compose.yaml: was not made by emit" in capsys.readouterr().err
    assert main(["emit", "compose", "-t", "cpu", "-o", "compose.yaml", "--force"]) == 0


def test_the_small_gpu_of_this_host_stays_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dev/dri").mkdir(parents=True)
    for name in ("kfd", "dri/renderD128", "dri/renderD129"):
        (tmp_path / "dev" / name).touch()
    two = (hostgpu.Gpu("gfx1036", "renderD128"), hostgpu.Gpu("gfx1100", "renderD129"))
    found = hostgpu.devices(tmp_path, two[1:])
    monkeypatch.setattr(hostgpu, "gpus", lambda root=None: two)
    asked: list[object] = []
    monkeypatch.setattr(hostgpu, "devices", lambda *root, chosen=(): asked.append(chosen) or ("/dev/kfd", "/dev/dri/x"))
    assert [Path(path).name for path in found] == ["kfd", "renderD129"]
    for kind in ("compose", "quadlet", "devcontainer", "docker", "podman"):
        group = ["--group", "44"] if kind in ("compose", "devcontainer") else []
        assert main(["emit", kind, "-t", "gfx1100", *group]) == 0
        said = capsys.readouterr().out
        assert "/dev/dri/x" in said
        assert "/dev/dri/renderD" not in said
    assert asked == [two[1:]] * 5
    # what is named is meant, and where all are of a kind nothing of this host is in a definition
    assert main(["emit", "docker", "-t", "gfx1100", "--device", "/dev/kfd"]) == 0
    monkeypatch.setattr(hostgpu, "gpus", lambda root=None: two[1:])
    assert main(["emit", "docker", "-t", "gfx1100"]) == 0
    assert "/dev/dri/renderD*" in capsys.readouterr().out
    assert len(asked) == 5


def test_every_command_of_the_documentation_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (FOLDER.parent / "docs/containers.md").read_text()
    commands = [shlex.split(line) for line in re.findall(r"^strix-finetune (emit .*)$", page, re.M)]
    assert {command[1] for command in commands} == set(KINDS)
    # the docs say which of them need the groups; the others must not
    monkeypatch.setattr("strix_finetune.hostgpu.devices", lambda: ())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").touch()
    for command in commands:
        assert main(command) == 0, (command, capsys.readouterr().err)
        written = tmp_path / command[command.index("-o") + 1]
        assert not edited(written.read_text())
    # nothing is written twice, and only what the page names
    names = {command[command.index("-o") + 1] for command in commands}
    assert {path.name for path in tmp_path.iterdir()} == names | {"token", "night.image"}
    assert len(names) == len(commands)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["udev", "--shm", "4"], "--shm means nothing for udev"),
        (["toolbox", "--device", "/dev/kfd"], "--device means nothing for toolbox"),
        (["distrobox", "train", "x"], "a command means nothing for distrobox"),
        (["podman", "--group", "1"], "--group means nothing for podman"),
        (["compose", "--engine", "podman", "--group", "1"], "your own groups are kept"),
        (["compose", "-t", "gfx1151", "--group", "1", "--user", "me"], "give numbers, UID:GID"),
        (["docker", "--hf-token", "/nonexistent"], "there is no file /nonexistent"),
        (["wsl", "-t", "cpu"], "take the kind docker"),
        (["compos"], "did you mean 'compose'?"),
    ],
)
def test_wrong_words_are_one_sentence(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emit", *arguments]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert len(shown.splitlines()) == 1
