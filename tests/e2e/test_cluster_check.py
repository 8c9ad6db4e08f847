"""`cluster check` on three machines: what it finds, how long it takes, and that it leaves nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.stranger import Stranger
from tests.machines.desk import Desk, Machine, stores_of
from tests.machines.machine import inner

# what is promised, and the time that a busy machine of CI may need on top
SECONDS, SLACK = 30, 60
Trio = tuple[Machine, Machine, Machine]


@pytest.fixture(scope="module")
def desk(stranger: Stranger, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Three machines that have the image, as somebody has them who ran the README's command on each."""
    stranger.run("make", "image", "ENGINE=podman", "TARGET=cpu")
    stores = stores_of(stranger.run("podman", "info", "--format", "json"))
    with Desk(tmp_path_factory.mktemp("desk"), stores) as made:
        made.put("strix1", office="eno1", link="enp1s0")
        made.put("strix2", office="enp3s0", link="thunderbolt0")
        made.put("strix3", office="lan0", link="enp9s0f1")
        for machine in made.machines:
            machine.start()
        yield made


@pytest.fixture
def trio(desk: Desk) -> Iterator[Trio]:
    """All of them; whatever a test did, nothing of it is left."""
    one, two, three = desk.machines
    yield one, two, three
    nothing_left(one, two, three)


def begin(at: Machine, nodes: Trio | tuple[Machine, Machine], *words: str) -> subprocess.Popen[str]:
    """Start the check at a machine, which the others are reached from by ssh."""
    lines = ['image = "localhost/strix-finetune:cpu"', 'ports = "29400-29419"']
    for node in nodes:
        lines += ["[[nodes]]", f'name = "{node.name}"', f'address = "{node.address}"']
        lines += [f'ssh = "{node.name}"'] if node is not at else []
    (at.home / "cluster.toml").write_text("\n".join([*lines, ""]))
    return at.popen("strix-finetune", "cluster", "check", *words)


def bad(out: str, err: str) -> str:
    """What a check in JSON did not find well, and what it said beside that."""
    try:
        found = [each for each in json.loads(out)["findings"] if each["level"] != "ok"]
    except ValueError:
        return out + err
    return "\n".join([*(json.dumps(each) for each in found), err])


def nothing_left(*machines: Machine) -> None:
    """No container, no process of ours, on any machine."""
    for machine in machines:
        assert machine.well("podman", "ps", "--all", "--quiet") == ""
        assert not _ours(machine)


def test_three_machines_are_fine_whatever_their_names_stand_for(trio: Trio) -> None:
    one, two, _ = trio
    for machine in (one, two):
        machine.loopback_hostname()
    try:
        began = time.monotonic()
        process = begin(one, trio, "--json")
        out, err = process.communicate(timeout=200)
        took = time.monotonic() - began
    finally:
        for machine in (one, two):
            machine.loopback_hostname(False)
    assert process.returncode == 0, bad(out, err)
    said = json.loads(out)
    assert not said["failed"]
    assert took < SECONDS + SLACK
    found = {(each["check"], *each["nodes"]): each for each in said["findings"]}
    for node in trio:
        assert found["interface", node.name]["data"]["interface"] == node.link
        assert said["environment"][node.name]["GLOO_SOCKET_IFNAME"] == node.link
        assert said["environment"][node.name]["NCCL_SOCKET_IFNAME"] == f"={node.link}"
    for here in trio:
        for there in trio:
            if here is not there:
                assert found["mtu", here.name, there.name]["data"]["passed_bytes"] == 1500
                assert found["speed", here.name, there.name]["data"]["gbit"] > 0
    assert {each["STRIX_LINK_GBIT"] for each in said["environment"].values()} == {f"{said['link']['gbit']:g}"}
    assert found["allreduce",]["level"] == "ok"
    assert "all 3 nodes" in found["allreduce",]["says"]
    assert found["hostname", one.name]["level"] == "ok"


def test_a_firewall_that_leaves_the_first_port_open(trio: Trio) -> None:
    """The classic: the rendezvous works, and everything hangs a moment later. With what the kernel tells of itself."""
    one, two, _ = trio
    two.block("32768:60999")
    try:
        process = begin(one, (one, two), "--brief")
        out, err = process.communicate(timeout=200)
    finally:
        two.unblock()
    assert process.returncode == 1, out + err
    said = " ".join(out.split())
    assert "strix1 > strix2 29400-29419 are open, but not the ports that gloo and RCCL choose (32768-60999:" in said
    assert f"`sudo ufw allow from {one.address}`" in said
    assert "allreduce all not tried, since ports failed on strix1 > strix2" in said
    assert "training would fail" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_check_that_was_ended(trio: Trio, number: int) -> None:
    one, two, _ = trio
    process = begin(one, (one, two))
    _until(process, lambda: all(_agents(machine) for machine in (one, two)))
    os.kill(inner(process), number)
    process.communicate(timeout=60)
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    until = time.monotonic() + SECONDS
    # what was killed could end nothing itself: the machines notice
    while any(_ours(machine) for machine in (one, two)) and time.monotonic() < until:
        time.sleep(0.5)
    if number == signal.SIGKILL:
        # nothing runs; what Podman, which ended as well, did not come to forget, the next check removes
        assert not any(_ours(machine) for machine in (one, two))
        out, err = begin(one, (one, two), "--brief").communicate(timeout=200)
        assert "training would fail" not in out, out + err
    nothing_left(one, two)


def _ours(machine: Machine) -> list[str]:
    return re.findall(r"strix-agent|conmon|system service", machine.well("ps", "-eo", "args"))


def _agents(machine: Machine) -> str:
    return machine.well("sh", "-c", "pgrep -f [s]trix-agent.pyz || true")


def _until(process: subprocess.Popen[str], happened: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS + SLACK
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.2)


def test_fewer_ports_behind_a_firewall(trio: Trio) -> None:
    """What the page about clusters says for those who cannot open all ports, and that gloo keeps to it."""
    one, two, _ = trio
    before = one.well("sysctl", "--values", "net.ipv4.ip_local_port_range").split()
    try:
        for machine in (one, two):
            machine.well("sysctl", "-w", "net.ipv4.ip_local_port_range=29500 31499")
            machine.block("1024:29399", "31500:65535")
        process = begin(one, (one, two), "--json")
        out, err = process.communicate(timeout=200)
    finally:
        for machine in (one, two):
            machine.unblock()
            machine.well("sysctl", "-w", f"net.ipv4.ip_local_port_range={' '.join(before)}")
    assert process.returncode == 0, bad(out, err)
    levels = {each["check"]: each["level"] for each in json.loads(out)["findings"]}
    assert (levels["ports"], levels["allreduce"]) == ("ok", "ok")
