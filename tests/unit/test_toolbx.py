"""Toolbx: the configuration keeps every sign that is not ours; containers are judged by what Podman says of them."""

from __future__ import annotations

import json
import os
import pwd
import socket
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune import cli
from strix_finetune.engine.base import Image
from strix_finetune.errors import InputError, WorkError
from strix_finetune.toolbx import conf, make, programs
from strix_finetune.toolbx.contract import LABEL
from strix_finetune.toolbx.make import Wanted
from strix_finetune.toolbx.programs import Programs

REF = "localhost/strix-finetune:gfx1151"
PATH = Path("toolbox.conf")
IMAGE = Image("sha256:" + "a" * 64, (REF,), {}, 20 << 30)
WANTED = Wanted("strix-finetune", REF, IMAGE)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "[general]\n",
        "# a comment\n[general] # here\n\n[other]\nx = 1\n",
        '[other]\nimage = "not mine"\n[general]\n',
        '[general]\nimage = "registry.example/mine:1"   # dear to me\nx = [1,\n 2]\n[other]\nimage = "y"\n',
        '[general]\n  image="old"',
        "[ general ]\r\nx = 1\r\n",
    ],
)
def test_the_image_is_put_in_and_taken_out_and_the_rest_stays(text: str) -> None:
    made = conf.with_image(text, REF, PATH)
    before, after = tomllib.loads(text), tomllib.loads(made)
    assert after["general"]["image"] == REF
    before.setdefault("general", {})["image"] = REF
    assert after == before
    for line in text.splitlines():
        assert line in made
    assert conf.with_image(made, REF, PATH) == made
    back = conf.without_image(made, PATH)
    assert back is None or tomllib.loads(back).get("general", {}) == tomllib.loads(text).get("general", {})
    assert (back is None) == (text.strip() in ("", "[general]"))


def test_another_target_takes_the_place_of_the_first_and_undo_knows_the_user_s_own() -> None:
    own = '[general]\nimage = "mine"\n'
    made = conf.with_image(conf.with_image(own, REF, PATH), "localhost/strix-finetune:cpu", PATH)
    assert tomllib.loads(made)["general"]["image"] == "localhost/strix-finetune:cpu"
    assert REF not in made
    assert conf.without_image(made, PATH) == own


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[general]\ndistro = 'fedora'\n", r"toolbox\.conf: is left as it is: \[general\] has 'distro'"),
        ("[general]\nrelease = '43'\n", "'release', which Toolbx does not take together"),
        ("general = {image = 'x'}\n", "cannot be changed line by line; write image = "),
        ("general.image = 'x'\n", "cannot be changed line by line"),
        ("general = 1\n", "'general' is not a table"),
        ("[general\n", "it is not valid TOML: .*; correct it"),
        ('[general]\nx = """\n[general]\nimage = 1\n"""\n"image" = "y"\n', "cannot be changed line by line"),
    ],
)
def test_what_cannot_be_kept_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        conf.with_image(text, REF, PATH)


def test_undo_without_a_line_of_ours() -> None:
    with pytest.raises(InputError, match="no line of strix-finetune; there is nothing to undo"):
        conf.without_image('[general]\nimage = "mine"\n', PATH)


_LINES = st.sampled_from(
    [
        "[general]",
        "[a]",
        "[a.b]",
        'image = "x"',
        "image = 'y' # c",
        "k = 1",
        "# [general]",
        "",
        'm = """',
        '"""',
        "general.k = 2",
    ]
)


@given(st.lists(_LINES, max_size=8))
def test_any_file_is_kept_or_refused(lines: list[str]) -> None:
    text = "\n".join(lines)
    try:
        made = conf.with_image(text, REF, PATH)
    except InputError:
        return
    expected = tomllib.loads(text)
    expected.setdefault("general", {})["image"] = REF
    assert tomllib.loads(made) == expected
    back = conf.without_image(made, PATH)
    assert back is None or tomllib.loads(back).get("general", {}) == tomllib.loads(text).get("general", {})


def test_setup_without_an_image_moves_nothing_and_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "containers").mkdir()
    file = tmp_path / "containers/toolbox.conf"
    file.write_text("[general]\ndistro = 'fedora'\n")
    code = cli.main(["toolbox", "setup", "--target", "gfx1151"])
    assert code == 2
    assert file.read_text() == "[general]\ndistro = 'fedora'\n"


def test_undo_writes_through_a_link_and_removes_what_setup_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "containers").mkdir()
    dotfile = tmp_path / "dotfile"
    own = "# mine\n[general]\n"
    dotfile.write_text(conf.with_image(own, REF, PATH))
    (tmp_path / "containers/toolbox.conf").symlink_to(dotfile)
    assert CliRunner().invoke(cli.root, ["toolbox", "setup", "--undo"]).exit_code == 0
    assert dotfile.read_text() == own
    assert (tmp_path / "containers/toolbox.conf").is_symlink()
    dotfile.write_text(conf.with_image("", REF, PATH))
    (tmp_path / "containers/toolbox.conf").unlink()
    dotfile.rename(tmp_path / "containers/toolbox.conf")
    assert CliRunner().invoke(cli.root, ["toolbox", "setup", "--undo"]).exit_code == 0
    assert not (tmp_path / "containers/toolbox.conf").exists()


def test_a_shell_is_found_where_the_environment_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = programs.needed({"PATH": "/bin", "CONTAINER_HOST": "unix:///x"})
    assert found["SHELL"] == (pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh")
    assert found["HOME"]
    assert "CONTAINER_HOST" not in found
    assert programs.needed({"SHELL": "/bin/fish"})["SHELL"] == "/bin/fish"


def test_a_user_without_a_runtime_folder_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    monkeypatch.setattr(Path, "is_dir", lambda self: False)
    with pytest.raises(InputError, match="XDG_RUNTIME_DIR is not set"):
        programs.needed({})
    assert programs.needed({"XDG_RUNTIME_DIR": "/run/x"})["XDG_RUNTIME_DIR"] == "/run/x"


def test_a_bus_that_does_not_answer_is_told(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    env = {"DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={path}"}
    with pytest.raises(InputError, match=r"D-Bus, which does not answer at .*/bus: no such file.*; start it"):
        programs.check_bus(env)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        programs.check_bus(env)


CONTAINER: dict[str, Any] = {
    "Image": "a" * 64,
    "Config": {"Labels": {LABEL: "true"}},
    "HostConfig": {"Privileged": True, "UsernsMode": "private"},
    "Mounts": [{"Destination": "/dev"}],
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"Image": "b" * 64}, "is of the image bbbbbbbbbbbb, not localhost/strix-finetune:gfx1151"),
        ({"Config": {"Labels": None}}, f"lacks the label {LABEL}"),
        ({"HostConfig": {"Privileged": False, "UsernsMode": "private"}}, "is not privileged"),
        ({"Mounts": []}, "does not have the host's /dev"),
        ({"HostConfig": {"Privileged": True, "UsernsMode": ""}}, "does not keep your user id"),
    ],
)
def test_a_container_that_is_not_right(change: dict[str, Any], said: str) -> None:
    make.check(CONTAINER, WANTED, rootless=True)
    with pytest.raises(WorkError, match=said):
        make.check(CONTAINER | change, WANTED, rootless=True)
    with pytest.raises(WorkError, match="Podman does not know it"):
        make.check(None, WANTED, rootless=True)


class Stage(Programs):
    """toolbox and podman that write down what they are asked, and know containers by name."""

    names: set[str]
    calls: list[str]
    fail: str
    info: str
    old: dict[str, Any]
    new: dict[str, Any]
    said: list[str]

    def _run(self, words: tuple[str, ...], doing: str) -> str:
        line = " ".join(word for word in words if word != "--assumeyes")
        self.calls.append(line)
        if self.fail and self.fail in line:
            raise WorkError(f"could not {doing}: it does not work today")
        match line.split():
            case [_, "create", *_, name]:
                self.names.add(name)
            case [_, "rename", old, new]:
                self.names.remove(old)
                self.names.add(new)
            case [_, "rm", *_, name]:
                self.names.remove(name)
            case [_, "ps", *_]:
                return "\n".join(self.names)
            case [_, "container", "inspect", name]:
                return json.dumps([self.old if name == "box" else self.new])
            case [_, "info", *_]:
                return self.info
            case [_, "run", *rest]:
                return "torch 2.13 on the CPU\n" if "import" in rest else "a word\nstrix-train, version 1\n"
        return ""


def staged() -> Stage:
    stage = Stage("toolbox", "podman", "0.0.99.3", {})
    info = '{"store": {"graphRoot": "/", "graphDriverName": "overlay"}}'
    start = {"names": set(), "calls": [], "fail": "", "info": info, "old": CONTAINER, "new": CONTAINER, "said": []}
    change(stage, **start)
    return stage


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return staged()


def change(stage: Stage, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(stage, name, value)


BOX = replace(WANTED, name="box")


def test_create_makes_and_looks(stage: Stage) -> None:
    make.create(stage, BOX, stage.said.append)
    assert stage.names == {"box"}
    assert f"toolbox create --image {REF} box" in "\n".join(stage.calls)
    with pytest.raises(InputError, match="there is a container box already; enter it"):
        make.create(stage, BOX, stage.said.append)
    assert stage.names == {"box"}


def test_a_container_that_is_not_right_does_not_stay(stage: Stage) -> None:
    change(stage, old=CONTAINER | {"Mounts": []})
    with pytest.raises(WorkError, match="does not have the host's /dev"):
        make.create(stage, BOX, stage.said.append)
    assert stage.names == set()


def test_the_words_of_a_failing_program_are_told(tmp_path: Path) -> None:
    program = tmp_path / "toolbox"
    program.write_text("#!/bin/sh\necho 'Error: no space left on device' >&2\nexit 125\n")
    program.chmod(0o755)
    with pytest.raises(WorkError, match=r"could not create box: no space left on device; make room where the"):
        Programs(str(program), "podman", "1", {"PATH": "/bin"}).toolbx("create", doing="create box")
