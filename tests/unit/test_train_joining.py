"""How a container that Slurm or Kubernetes started finds the others, on the loopback and in processes of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from strix_train import joining
from strix_train.joining import NotJoined, Place

TWO = {
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "1",
    "PET_MASTER_ADDR": "127.0.0.1",
    "PET_MASTER_PORT": "29400",
}
SHOW = "import json, os, sys; print(json.dumps(dict(os.environ))); sys.exit(7)"


def started(*arguments: str, **env: str) -> subprocess.Popen[str]:
    kept = {"PATH": os.environ["PATH"]}
    return subprocess.Popen(
        [sys.executable, "-m", "strix_train.joining", *arguments],
        env=kept | TWO | env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("attended", [[], ["--attended"]])
def test_one_process_is_told_what_torchrun_would_tell(attended: list[str]) -> None:
    process = started(*attended, "--", sys.executable, "-c", SHOW)
    line, said = process.stdout.read().split("\n")[:2] if process.stdout else ("", "")
    assert process.wait(30) == 7
    assert re.fullmatch(r"node 1 of 2 \(.+\): lo, first node at 127\.0\.0\.1:29400", line)
    env = json.loads(said)
    told = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    assert {name: env[name] for name in told} == told
    assert env["MASTER_PORT"] == "29400"
    assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"], env["TP_SOCKET_IFNAME"]) == ("lo", "=lo", "lo")


def test_an_interface_that_somebody_named_stays() -> None:
    env = {"GLOO_SOCKET_IFNAME": "fast0"}
    assert joining.chosen(env, Place(1, 2, 1, "127.0.0.1", 1)) == {
        "NCCL_SOCKET_IFNAME": "=lo",
        "TP_SOCKET_IFNAME": "lo",
    }
    assert joining.chosen({}, Place(0, 1, 1, "127.0.0.1", 1)) == {}


@pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2 tells what the kernel would take")
def test_the_interface_is_the_one_that_the_kernel_takes() -> None:
    done = subprocess.run(["ip", "-o", "route", "get", "192.0.2.1"], capture_output=True, text=True)
    found = re.search(r" dev (\S+) .*src (\S+)", done.stdout)
    if not found:
        with pytest.raises(NotJoined, match=r"no route to 192\.0\.2\.1"):
            joining.own_address("192.0.2.1")
        return
    assert joining.own_address("192.0.2.1") == found[2]
    assert joining.interface_of(found[2]) == found[1]


def test_the_first_node_asks_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a host calls itself is 127.0.1.1 in Debian's /etc/hosts, which would make its interface the loopback."""
    monkeypatch.setattr(joining, "resolve", lambda name, deadline: {"two": "10.0.0.2", "one": "127.0.1.1"}[name])
    monkeypatch.setattr(joining, "own_address", {"10.0.0.2": "10.0.0.1"}.__getitem__)
    first = TWO | {"PET_NODE_RANK": "0", "PET_MASTER_ADDR": "one", "STRIX_PEER": "two"}
    assert joining.read(first) == Place(0, 2, 1, "10.0.0.1", 29400)
    monkeypatch.setattr(joining, "resolve", lambda name, deadline: {"one": "10.0.0.1"}[name])
    assert joining.read(first | {"PET_NODE_RANK": "1"}) == Place(1, 2, 1, "10.0.0.1", 29400)


def test_several_processes_are_torchruns() -> None:
    place = Place(0, 2, 4, "10.0.0.1", 29400)
    words = joining.command(place, ["train", "run", "x.yaml"])
    assert words[1:3] == ["-m", "torch.distributed.run"]
    assert words[-4:] == ["-m", "strix_train", "run", "x.yaml"]
    assert joining.command(place, ["bash", "x.sh"])[-3:] == ["--no-python", "bash", "x.sh"]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"PET_NNODES": ""}, "PET_NNODES is '' and not a number"),
        ({"PET_NODE_RANK": "2"}, "there is no node 2 of 2"),
        ({"PET_NPROC_PER_NODE": "auto"}, "PET_NPROC_PER_NODE is 'auto'"),
        ({"PET_MASTER_ADDR": ""}, "has no address here"),
        ({"PET_MASTER_ADDR": "nowhere.invalid"}, "'nowhere.invalid' has no address here"),
    ],
)
def test_what_cannot_be_joined_is_a_sentence(env: dict[str, str], said: str) -> None:
    with pytest.raises(NotJoined, match=said):
        joining.read(TWO | env, named_within=0)


def test_nothing_to_run_and_nothing_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert joining.main(["--attended", "--"]) == 2
    process = started("--", "/nonexistent/train")
    assert process.wait(30) == 1
    assert process.stderr
    assert "/nonexistent/train does not start" in process.stderr.read()


def stops(code: str, path: Path) -> str:
    """A program that writes how it ended."""
    return (
        "import signal, sys, time, pathlib\n"
        f"def end(number, frame):\n    pathlib.Path({str(path)!r}).write_text(str(number)); sys.exit({code})\n"
        "signal.signal(signal.SIGINT, end); signal.signal(signal.SIGTERM, end)\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout
    for line in process.stdout:
        if word in line:
            return
    raise AssertionError(process.stderr.read() if process.stderr else "")


def test_a_signal_reaches_what_runs_and_its_end_is_ours(tmp_path: Path) -> None:
    for flags in ([], ["--attended"]):
        process = started(*flags, "--", sys.executable, "-c", stops("130", tmp_path / "end"))
        wait_for(process, "ready")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert (tmp_path / "end").read_text() == str(int(signal.SIGINT))


def test_whoever_started_it_may_be_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = started("--attended", "--", sys.executable, "-c", stops("0", tmp_path / "end"))
    wait_for(process, "ready")
    assert process.stdin
    process.stdin.write("a word changes nothing\n")
    process.stdin.flush()
    time.sleep(0.3)
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(30) == 0
    assert (tmp_path / "end").read_text() == str(int(signal.SIGTERM))
    assert process.stderr
    assert "has gone" in process.stderr.read()
