"""`strix-finetune doctor`: what it prints, its exit codes, and what it asks of the machine itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strix_finetune import cli
from strix_finetune.doctor import edges, show
from strix_finetune.doctor.registry import CHECKS
from strix_finetune.doctor.values import VERDICTS, Finding, Report, Result
from strix_finetune.doctor.wants import Wants
from strix_finetune.errors import EngineUnavailable, InputError
from strix_finetune.netconf import NetSettings
from strix_finetune.paths import find
from strix_finetune.toolbx.contract import LABEL
from tests.fakes import FakeEngine
from tests.unit.doctor.hosts import Tree
from tests.unit.doctor.scenes import fedora_halo, noble_halo

ROOT = Path(__file__).resolve().parents[3]


def test_a_good_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fedora_halo(Tree(tmp_path))
    assert cli.main(["doctor", "--root", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^ok         memory +ROCm may use 112 GiB of 128 GiB; what fits: ", out, re.M)
    assert out.endswith("2 advice, 2 not shown, 12 ok\n")
    assert "\x1b" not in out
    assert "read:" not in out
    # a command is left in one piece, everything else is folded
    assert all(len(line) <= 118 for line in out.splitlines() if "$ " not in line)


def test_a_bad_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noble_halo(Tree(tmp_path)).user(groups=(1000,), members=False)
    assert cli.main(["doctor", "--root", str(tmp_path), "--verbose"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^blocks     devices ", out, re.M)
    assert "$ sudo usermod -aG render kim\n" in out
    assert re.search(r"read: .*/etc/group, .*/dev/kfd", re.sub(r"\s+", " ", out))
    assert "not there: " in out


def test_fixes_are_printed_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = noble_halo(Tree(tmp_path), "6.17.0-14-generic").user(groups=(1000,), members=False)
    before = {path: path.stat().st_mtime_ns for path in tree.root.rglob("*")}
    assert cli.main(["doctor", "--root", str(tmp_path), "--fix"]) == 1
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line and not line.startswith("#")]
    # what blocks comes first
    assert lines == ["sudo usermod -aG render kim", "sudo apt install linux-generic-hwe-24.04"]
    assert subprocess.run(["sh", "-n"], input=out, text=True).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in tree.root.rglob("*")} == before


def test_nothing_to_fix() -> None:
    assert show.fixes(Report("/", (Result("gpu", Finding("ok", "all is well")),))) == "# There is nothing to fix."


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fedora_halo(Tree(tmp_path)).put("etc/subuid", "")
    assert cli.main(["doctor", "--root", str(tmp_path), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"root", "blocked", "counts", "findings"}
    assert report["blocked"] is True
    assert report["root"] == str(tmp_path)
    assert list(report["counts"]) == list(VERDICTS)
    assert sum(report["counts"].values()) == len(report["findings"])
    documented = (ROOT / "docs/json.md").read_text("utf-8").split("## `doctor --json`")[1].split("\n## ")[0]
    for entry in report["findings"]:
        assert set(entry) == {"check", "verdict", "says", "fix", "commands", "data", "read", "absent"}
        assert all(f"`{key}`" in documented for key in entry)
    subids = next(entry for entry in report["findings"] if entry["check"] == "subids")
    assert subids["verdict"] == "blocks"
    assert subids["data"] == {"held": 0, "needed": 65536}
    assert "/etc/subuid" in subids["read"]
    memory = next(entry for entry in report["findings"] if entry["check"] == "memory")
    assert all(f"`{key}`" in documented for key in memory["data"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "gfx1150x"], "there is no target 'gfx1150x'; did you mean 'gfx1150'?"),
        (["--channel", "debain"], "there is no channel 'debain'; did you mean 'debian'?"),
        (["--root", "/nowhere"], "/nowhere"),
    ],
)
def test_wrong_words(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_this_machine() -> None:
    """The whole command as people start it: no traceback, and the engine's answer or why there is none."""
    command = [sys.executable, "-m", "strix_finetune", "doctor", "--offline", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert done.returncode == int(report["blocked"])
    assert not [entry for entry in report["findings"] if "a fault in this check" in entry["says"]]
    found = {entry["check"]: entry for entry in report["findings"]}
    assert {"gpu", "engine", "cgroups", "temporary", "network"} <= set(found)
    assert found["network"]["verdict"] == "unknown"
    assert found["temporary"]["data"]["free_gib"] > 0
    assert set(found) <= {check.name for check in CHECKS}


def test_the_copy_that_the_documentation_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands are run as they stand; what this machine lacks they pass over."""
    text = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    block = next(part for part in re.findall(r"```\n(.*?)```", text, re.S) if "cp -rL" in part)
    subprocess.run(["bash", "-c", block], cwd=tmp_path, capture_output=True, timeout=60)
    copied = tmp_path / "host"
    assert (copied / "proc/meminfo").read_text().startswith("MemTotal:")
    assert (copied / "owners.txt").is_file()
    assert cli.main(["doctor", "--root", str(copied), "--json"]) in (0, 1)
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert not [entry for entry in findings if "a fault in this check" in entry["says"]]


@given(words=st.text(min_size=1), commands=st.lists(st.sampled_from(["a b", "c"]), max_size=2))
@settings(max_examples=50, deadline=None)
def test_whatever_is_said_can_be_shown(words: str, commands: list[str]) -> None:
    finding = Finding("blocks", words, words, tuple(commands), {"x": words})
    report = Report("/", (Result("gpu", finding, ("/a",), ("/b",)),))
    assert show.text(report, verbose=True).endswith("1 blocks")
    comments = [line for line in show.fixes(report).split("\n") if line not in commands]
    assert all(not line or line.startswith("#") for line in comments)
    assert json.loads(json.dumps(show.as_json(report)))["findings"][0]["says"] == words


@contextmanager
def _server(status: int) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.send_header("Location", "http://elsewhere.example/")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/x?token=secret"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (200, ""),
        (403, ""),
        (404, ""),
        (407, "the proxy asks for a password"),
        (502, "its server answers with status 502"),
        (301, "it redirects to an address that is not encrypted"),
    ],
)
def test_addresses(status: int, problem: str) -> None:
    with _server(status) as url:
        assert edges.ask(url, NetSettings()) == problem


def test_addresses_that_do_not_answer() -> None:
    assert edges.ask("http://127.0.0.1:1/", NetSettings()) == "connection refused"
    assert edges.ask("http://no-such-host.invalid/", NetSettings())
    assert edges.ask("ftp://127.0.0.1/", NetSettings())


def test_asked_side_by_side_and_without_secrets() -> None:
    ready = threading.Barrier(3, timeout=10)

    def ask(url: str) -> str:
        ready.wait()
        return f"asked {url}"

    addresses = [(f"a{number}", f"https://{number}.example/x?token=1", "work") for number in range(3)]
    live = edges.Live({"DOCKER_HOST": "unix:///nowhere/x.sock"}, addresses=lambda: addresses, ask=ask)
    answers = live.reach()
    assert answers is not None
    assert [answer.place for answer in answers] == [f"https://{number}.example/x" for number in range(3)]
    assert all(answer.problem.startswith("asked https://") for answer in answers)


def test_the_machine_itself(tmp_path: Path) -> None:
    live = edges.Live({"DOCKER_HOST": "unix:///nowhere/x.sock"})
    state = live.engine()
    assert state.info is None
    assert state.problem is not None
    assert "unix:///nowhere/x.sock (from DOCKER_HOST)" in state.problem.message
    assert live.reach() is None
    assert live.budget() == 0
    space = live.space(str(tmp_path / "not/yet/there"))
    assert space is not None
    assert 0 < space.free <= space.total
    assert live.open(os.devnull) == ""
    assert live.open(str(tmp_path / "none")) == "no such file or directory"


def test_the_image_for_toolbx_is_asked_of_podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    podman = FakeEngine()
    podman.add({LABEL: "true"}, "localhost/x:1")

    def connect(kind: str, env: object) -> FakeEngine:
        if kind != "podman":
            raise EngineUnavailable("there is no other engine")
        return podman

    monkeypatch.setattr(edges, "connect", connect)
    env = {"PATH": str(tmp_path)}
    assert edges.Live(env, toolbox=lambda: "localhost/x:1").toolbox_image() is None, "Toolbx is not installed"
    (tmp_path / "toolbox").touch(0o755)
    found = edges.Live(env, toolbox=lambda: "localhost/x:1").toolbox_image()
    assert found == edges.ToolboxImage("localhost/x:1", {"Labels": {LABEL: "true"}})
    assert podman.closed.is_set()
    assert edges.Live(env, toolbox=lambda: "localhost/y:1").toolbox_image() == edges.ToolboxImage("localhost/y:1", None)
    assert edges.Live(env).toolbox_image() is None
    assert Wants(find().images, "cpu", "", {}).toolbox() == "localhost/strix-finetune:cpu"
    assert Wants(Path("/nowhere"), "", "", {}).toolbox() == ""


def test_settings_that_cannot_be_right_are_said() -> None:
    def addresses() -> list[edges.Address]:
        raise InputError("--ca-bundle names /x, which is not a file", cure="correct it")

    live = edges.Live({"DOCKER_HOST": "unix:///nowhere/x.sock"}, addresses=addresses)
    with pytest.raises(InputError, match="--ca-bundle"):
        live.reach()


def test_an_engine_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(edges, "_engine", lambda *_: released.wait(10))
    monkeypatch.setattr(edges, "_ENGINE_PATIENCE", 0.1)
    state = edges.Live({}).engine()
    released.set()
    assert state.problem is not None
    assert state.problem.message == "the container engine does not answer"


def test_what_the_work_wants(tmp_path: Path) -> None:
    images = find().images
    wants = Wants(images, "gfx1151", "amd", {"HOME": "/nonexistent", "HF_ENDPOINT": "https://hub.example", "PATH": ""})
    named = {name: (url, needed) for name, url, needed in wants.addresses()}
    assert named["model hub"] == ("https://hub.example", "downloading models")
    assert named["index amd"][1] == "the channel amd"
    assert 5e9 < wants.budget() < 100e9
    mirrored = Wants(images, "gfx1151", "amd", {"STRIX_INDEX_AMD": "https://mirror.example/amd", "HF_HUB_OFFLINE": "1"})
    assert ("index amd", "https://mirror.example/amd", "the channel amd") in mirrored.addresses()
    assert "model hub" not in {name for name, _, _ in mirrored.addresses()}
    # the registry of this host's settings, whatever it says without a login
    for named, url in (("r.example/me/x", "https://r.example/v2/"), ("localhost:5000", "http://localhost:5000/v2/")):
        own = Wants(Path("/nowhere"), "", "", {"HOME": "/nonexistent", "PATH": "", "STRIX_REGISTRY": named})
        assert ("registry", url, "pulling and pushing images") in own.addresses()
    wrong = Wants(Path("/nowhere"), "", "", {"HOME": "/nonexistent", "PATH": "", "STRIX_REGISTRY": "short/name"})
    with pytest.raises(InputError, match="does not begin with the host of a registry"):
        wrong.addresses()
    # a base image is asked for at its registry
    channels = tmp_path / "images"
    shutil.copytree(images, channels)
    text = (channels / "channels/debian.toml").read_text("utf-8")
    text = re.sub(r'source = "mmdebstrap"', 'source = "image"\nimage = "registry.example/base:1"', text)
    (channels / "channels/debian.toml").write_text(text, "utf-8")
    based = Wants(channels, "cpu", "debian", {"HOME": "/nonexistent", "PATH": ""})
    assert ("registry", "https://registry.example/v2/base/manifests/1", "the channel debian") in based.addresses()
    # what is wrong with the definitions a build says
    assert Wants(Path("/nowhere"), "", "", {}).budget() == 0
