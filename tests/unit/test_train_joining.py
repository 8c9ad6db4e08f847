"""How a container that Slurm or Kubernetes started finds the others, on the loopback and in processes of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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


def _six() -> bool:
    """Whether this machine's loopback has an address of IPv6."""
    place = Path("/proc/net/if_inet6")
    return place.exists() and "0" * 31 + "1 " in place.read_text()


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


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1", "fe80::1%eth0"])
def test_an_address_stays_what_it_is(address: str) -> None:
    assert joining.resolve(address, 0) == address
    assert joining.read(TWO | {"PET_MASTER_ADDR": address}, 0) == Place(1, 2, 1, address, 29400)


@pytest.mark.parametrize("name", ["", "fd00::1::2", "10.0.0.300"])
def test_a_mistyped_address_is_not_waited_for(name: str) -> None:
    began = time.monotonic()
    with pytest.raises(NotJoined, match=f"the node '{name}' has no address here"):
        joining.resolve(name, began + 300)
    assert time.monotonic() - began < 30


def test_a_name_may_have_an_address_of_either_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(name: str, port: None, family: int, kind: int) -> list[tuple[object, ...]]:
        found = {("six", socket.AF_INET6): "fd00::6", ("both", socket.AF_INET6): "fd00::7"}
        found[("both", socket.AF_INET)] = "10.0.0.7"
        if (name, family) not in found:
            raise socket.gaierror(socket.EAI_NODATA, "No address associated with hostname")
        return [(family, kind, 6, "", (found[(name, socket.AddressFamily(family))], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", known)
    assert joining.resolve("six", 0) == "fd00::6"
    assert joining.resolve("both", 0) == "10.0.0.7"
    with pytest.raises(NotJoined, match=r"'none' has no address here \(No address associated"):
        joining.resolve("none", 0)


def test_the_interface_of_an_address_of_ipv6(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's list, of two interfaces with the same address on their own links."""
    link = "fe800000000000000000000000000001"
    own = "fd000000000000000000000000000001 02 40 00 80   fast0"
    (tmp_path / "six").write_text(f"{own}\n{link} 03 40 20 80    eth0\n{link} 02 40 20 80   fast0\n")
    monkeypatch.setattr(joining, "_SIX", tmp_path / "six")
    assert joining.interface_of("fd00::1") == "fast0"
    assert joining.interface_of("fe80::1%fast0") == "fast0"
    assert joining.interface_of("fe80::1%eth0") == "eth0"
    with pytest.raises(NotJoined, match="no interface holds fd00::2; name it in GLOO_SOCKET_IFNAME"):
        joining.interface_of("fd00::2")


@pytest.mark.skipif(not _six(), reason="this machine has no IPv6")
def test_the_loopback_of_ipv6() -> None:
    process = started("--", sys.executable, "-c", SHOW, PET_MASTER_ADDR="::1")
    line, said = process.stdout.read().split("\n")[:2] if process.stdout else ("", "")
    assert process.wait(30) == 7
    assert line.endswith(": lo, first node at [::1]:29400")
    env = json.loads(said)
    assert (env["MASTER_ADDR"], env["GLOO_SOCKET_IFNAME"]) == ("::1", "lo")


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_is_asked_to_stop_at_once_has_been_interrupted(number: signal.Signals) -> None:
    """Before there is something to run, while it is started, or before it handles signals: the end is the same."""
    process = started("--attended", "--", "sleep", "60")
    wait_for(process, "node 1 of 2")
    process.send_signal(number)
    assert process.wait(30) == 130
    process = started("--attended", "--", "sleep", "60", PET_MASTER_ADDR="nowhere.invalid")
    until = time.monotonic() + 30
    while time.monotonic() < until:
        caught = re.search(r"^SigCgt:\s*(\S+)$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
        assert caught
        if int(caught[1], 16) >> (signal.SIGHUP - 1) & 1:  # the last of them that is handled
            break
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(30) == 130
    assert process.poll() is not None


def test_a_signal_while_the_child_is_started_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Slow)
    asked = joining._Asked()
    try:
        child = asked.start(["sleep", "60"], os.environ)
        assert child.wait(30) == -signal.SIGTERM
    finally:
        asked.restore()
    assert asked.came == [signal.SIGTERM]


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
