"""The machines of the cluster tests are like boxes on a desk, break as those do, and leave nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines.desk import HOME, Desk, Machine

Pair = tuple[Machine, Machine]
# sends as many bytes as are asked for to whoever connects / counts what comes
_SERVER = "import socket, sys; l = socket.create_server(('', 29500)); print('up', flush=True); c = l.accept()[0]; "
_SERVER += "c.sendall(bytes(int(sys.argv[1]))); c.settimeout(60); c.recv(1)"
_CLIENT = "import socket, sys; c = socket.create_connection((sys.argv[1], 29500), 2); c.settimeout(2); n = 0\n"
_CLIENT += "while n < int(sys.argv[2]): n += len(c.recv(65536))\nprint(n)"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with Desk(tmp_path_factory.mktemp("desk")) as made:
        made.put("strix1", office="eno1", link="enp1s0")
        made.put("strix2", office="enp3s0", link="thunderbolt0", service=True)
        yield made


@pytest.fixture
def pair(desk: Desk) -> Pair:
    """Both switched on; each test puts right what it broke."""
    one, two = desk.machines
    for machine in (one, two):
        if not machine.running:
            machine.start()
    return one, two


def received(pair: Pair, size: int) -> str:
    """How much of `size` bytes the first machine gets from the second over the link."""
    one, two = pair
    server = two.popen(sys.executable, "-I", "-c", _SERVER, str(size))
    assert server.stdout
    assert server.stdout.readline() == "up\n"
    said = one.run(sys.executable, "-I", "-c", _CLIENT, two.address, str(size))
    server.kill()
    server.communicate()
    return said.out.strip() or said.err.strip().splitlines()[-1]


def test_each_is_a_host_of_its_own(pair: Pair) -> None:
    one, two = pair
    told = one.well("ssh", "strix2", "hostname; pwd; ls /sys/class/net; ps -e -o comm=")
    assert told.startswith(f"strix2\n{HOME}\nenp3s0\nlo\nthunderbolt0\n")
    assert "pytest" not in told
    one.well("touch", "here")
    assert (one.home / "here").exists()
    assert not (two.home / "here").exists()
    # its own Podman answers, and not this host's
    assert two.well("podman", "info", "--format", "{{.Host.Hostname}} {{.Store.GraphRoot}}").split() == [
        "strix2",
        "/var/lib/containers/storage",
    ]
    two.well("podman", "--remote", "--url", "unix:///run/podman/podman.sock", "info")
    assert not Path("/srv/strix").exists()


def test_a_wrong_host_key_is_seen(pair: Pair) -> None:
    one, _ = pair
    one.well(
        "sh", "-c", "sed 's/AAAAC3NzaC1lZDI1NTE5AAAAI..../AAAAC3NzaC1lZDI1NTE5AAAAIAAAA/' .ssh/known_hosts > wrong"
    )
    said = one.run("ssh", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={HOME}/wrong", "strix2", "true")
    assert said.code == 255
    assert "host key" in said.err.lower()


def test_a_firewall_drops_some_ports_of_the_link(pair: Pair) -> None:
    _, two = pair
    assert received(pair, 1000) == "1000"
    two.block("29401:29599")
    assert "timed out" in received(pair, 1000)
    two.unblock()
    assert received(pair, 1000) == "1000"


def test_packets_that_the_switch_does_not_take_are_lost(pair: Pair) -> None:
    for machine in pair:
        machine.mtu(9000)
    assert received(pair, 1000) == "1000"
    assert "timed out" in received(pair, 100_000)
    for machine in pair:
        machine.mtu(1500)
    assert received(pair, 100_000) == "100000"


def test_the_own_name_may_stand_for_the_loopback(pair: Pair) -> None:
    resolve = (sys.executable, "-I", "-c", "import socket; print(socket.gethostbyname(socket.gethostname()))")
    one, _ = pair
    assert one.well(*resolve).strip() == one.office_address
    one.loopback_hostname()
    assert one.well(*resolve).strip() == "127.0.1.1"
    one.loopback_hostname(False)
    assert one.well(*resolve).strip() == one.office_address


def test_a_clock_may_be_wrong(pair: Pair) -> None:
    one, two = pair
    two.stop()
    two.clock("+90s")
    try:
        two.start()
        assert 80 < int(one.well("ssh", "strix2", "date", "+%s")) - time.time() < 100
    finally:
        two.stop()
        two.clock()
    two.start()
    assert abs(int(one.well("ssh", "strix2", "date", "+%s")) - time.time()) < 10


def test_a_port_may_be_taken(pair: Pair) -> None:
    one, _ = pair
    taker = one.take(29400)
    said = one.run(sys.executable, "-I", "-c", "import socket; socket.create_server(('', 29400))")
    assert "Address already in use" in said.err
    taker.kill()
    taker.communicate()
    one.well(sys.executable, "-I", "-c", "import socket; socket.create_server(('', 29400))")


def test_pulling_the_plug_says_nothing_to_the_others(pair: Pair) -> None:
    """A process that dies closes its connections; a machine that loses its power does not."""
    one, two = pair
    server = two.popen(sys.executable, "-I", "-c", _SERVER, "10")
    assert server.stdout
    assert server.stdout.readline() == "up\n"
    client = one.popen(sys.executable, "-I", "-c", _CLIENT, two.address, "20")
    time.sleep(0.5)
    two.kill()
    _, err = client.communicate()
    assert "timed out" in err
    server.communicate()
    # and it can be switched on again
    two.start()
    assert one.well("ssh", "strix2", "hostname").strip() == "strix2"


def test_nothing_is_left_also_when_the_tests_are_killed(tmp_path: Path) -> None:
    folder = tmp_path / "desk"
    script = f"""
from pathlib import Path
from tests.machines.desk import Desk
with Desk(Path({str(folder)!r})) as desk:
    machine = desk.put("lonely", office="eno1", link="enp1s0")
    machine.start()
    print(machine.well("readlink", "/proc/1/ns/net").strip(), flush=True)
    machine.well("sleep", "600")
"""
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        space = process.stdout.readline().strip()
        assert space.startswith("net:[")
        process.send_signal(signal.SIGKILL)
    until = time.monotonic() + 10
    while (left := _within(space)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left
    with Desk(tmp_path / "next"):
        assert not list(Path("/sys/fs/cgroup").glob(f"*/strix-machine-{process.pid}-*"))
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()


def _within(space: str) -> list[str]:
    """Processes in a network namespace."""
    found = []
    for place in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            if str(place.readlink()) == space:
                found.append(place.parts[2])
        except OSError:  # it ended
            continue
    return found
