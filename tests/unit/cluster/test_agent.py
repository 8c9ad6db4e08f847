"""The agent, as real processes that reach one another over the loopback's addresses."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strix_finetune.cluster import facts as facts_module
from strix_finetune.cluster.agents import Agent, AgentLost, AgentRefused, _request, clock_offset
from strix_finetune.cluster.facts import NodeFacts, told
from strix_finetune.cluster.nodes import Node
from strix_finetune.cluster.reach import Reached
from strix_finetune.cluster.remote import parse
from strix_finetune.engine.base import EngineInfo
from strix_train.agent import collective, rdma, serve
from tests.unit.cluster.agentprocess import agent

A, B = "127.0.0.11", "127.0.0.12"
TOKEN = "5a" * 16


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Agent, Agent]]:
    folder = tmp_path_factory.mktemp("agents")
    with agent(folder, "a", A) as first, agent(folder, "b", B) as second:
        yield first, second


def free_ports(count: int) -> list[int]:
    """Ports in a row that nobody listens on at B."""
    for first in range(20100, 30000, count):
        with socket.socket() as probe:
            try:
                for port in range(first, first + count):
                    with socket.socket() as each:
                        each.bind((B, port))
            except OSError:
                continue
            probe.close()
        return list(range(first, first + count))
    raise AssertionError("this machine has no free ports")


def test_facts_are_those_of_this_machine(pair: tuple[Agent, Agent]) -> None:
    said = pair[0].get("facts", 5, folder="/")
    found = NodeFacts("a", A, **told(NodeFacts("a", A), said))
    assert found.hostname == socket.gethostname()
    assert found.kernel == os.uname().release
    assert found.memory_bytes > found.memory_free_bytes > 0
    assert {name for _, name in socket.if_nameindex()} & {item.name for item in found.interfaces}
    loopback = next(item for item in found.interfaces if item.kind == "loopback")
    assert loopback.holds("127.0.0.1")
    assert loopback.up
    assert found.local_ports == tuple(map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()))
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert pair[0].get("routes", 3, peers=["127.0.0.1"]) == {"127.0.0.1": "127.0.0.1"}


def test_the_clock_of_the_same_machine_is_not_off(pair: tuple[Agent, Agent]) -> None:
    offset, exact = clock_offset(pair[1])
    assert abs(offset) <= exact + 0.05


def test_every_port_of_a_range_is_tried(pair: tuple[Agent, Agent]) -> None:
    a, b = pair
    ports = free_ports(12)
    with socket.create_server((B, ports[3])) as other, socket.socket() as wide:
        wide.bind(("127.0.0.99", ports[0]))
        wide.listen()
        served = b.get("serve", 20, token=TOKEN, address=B, ports=ports[:10], some=4, exclusive=[ports[0]])
        # one is another program's, and the rendezvous must be free on every address
        assert served["taken"] == {str(ports[0]): "taken", str(ports[3]): "taken"}
        assert served["ports"] == [port for port in ports[1:10] if port != ports[3]]
        assert len(served["some"]) == 4
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        assert all(low <= port <= high for port in served["some"])
        other.settimeout(5)
        tried = [*served["ports"], *served["some"], ports[11]]
        found = a.get("connect", 5, token=TOKEN, address=B, ports=tried, source=A)
        assert found == {**{str(port): "open" for port in tried[:-1]}, str(ports[11]): "refused"}
        # who does not know the token learns nothing
        strange = a.get("connect", 5, token="00" * 16, address=B, ports=[ports[1]])
        assert strange == {str(ports[1]): "stranger"}
    b.get("unserve", 3)
    assert a.get("connect", 5, token=TOKEN, address=B, ports=[ports[1]]) == {str(ports[1]): "refused"}


def test_a_port_that_answers_nothing_is_dropped_in_time(pair: tuple[Agent, Agent]) -> None:
    """A full backlog is what a firewall that drops looks like: the connection is never answered."""
    with socket.socket() as full:
        full.bind((B, 0))
        full.listen(0)
        waiting = []
        for _ in range(4):
            link = socket.socket()
            link.setblocking(False)
            link.connect_ex(full.getsockname())
            waiting.append(link)
        begin = time.monotonic()
        found = pair[0].get("connect", 1, token=TOKEN, address=B, ports=[full.getsockname()[1]])
        for link in waiting:
            link.close()
    assert list(found.values()) == ["dropped"]
    assert time.monotonic() - begin < 3


def test_latency_bandwidth_and_the_largest_packet(pair: tuple[Agent, Agent]) -> None:
    a, b = pair
    served = b.get("serve", 20, token=TOKEN, address=B, ports=[], some=1)
    (port,) = served["some"]
    quick = a.get("latency", 3, token=TOKEN, address=B, port=port, source=A)
    assert quick["count"] == 50
    assert 0 < quick["least_us"] <= quick["median_us"] < 1e6
    much = a.get("bandwidth", 0.2, token=TOKEN, address=B, port=port, source=A)
    assert much["stalled"] == 0
    assert much["bytes"] > 1 << 20
    assert much["gbit"] == pytest.approx(much["bytes"] * 8 / much["seconds"] / 1e9, rel=0.02)
    assert a.get("mtu", 3, token=TOKEN, address=B, port=served["udp"], mtu=1500) == {"bytes": 1500, "told": 0}
    # nobody answers at another port
    assert a.get("mtu", 1, token=TOKEN, address=B, port=1, mtu=1500)["bytes"] == 0
    b.get("unserve", 3)


def test_a_receiver_that_stands_still_is_seen(pair: tuple[Agent, Agent]) -> None:
    with socket.create_server((B, 0)) as deaf:
        port = deaf.getsockname()[1]
        found = pair[0].get("bandwidth", 0.2, token=TOKEN, address=B, port=port, streams=2, patience=0.4)
    assert found["stalled"] == 2
    assert found["bytes"] == 0


def test_a_link_that_is_only_slow_does_not_stand_still(pair: tuple[Agent, Agent]) -> None:
    """A block takes longer than the patience, and a little of it is taken all the time."""
    begin = time.monotonic()

    def sip(link: socket.socket) -> None:
        with link, suppress(OSError):
            while link.recv(16 << 10):
                time.sleep(0.02)

    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
        slow.bind((B, 0))
        slow.listen()
        asked = pair[0].ask(
            "bandwidth", 0.3, token=TOKEN, address=B, port=slow.getsockname()[1], streams=2, patience=0.5
        )
        for _ in range(2):
            threading.Thread(target=sip, args=(slow.accept()[0],), daemon=True).start()
        found = pair[0].wait(asked, "bandwidth", 5)
    assert found["stalled"] == 0
    assert 0 < found["bytes"] < 32 << 20
    assert time.monotonic() - begin < 4


@pytest.mark.parametrize(("patience", "done"), [(0.1, False), (5.0, True)])
def test_what_listens_is_waited_for_until_it_is_closed(
    monkeypatch: pytest.MonkeyPatch, patience: float, done: bool
) -> None:
    """A machine that is busy closes late, and training binds the same port next."""
    accept = serve._accept

    def late(*words: Any) -> None:
        accept(*words)
        time.sleep(0.5)

    monkeypatch.setattr(serve, "_accept", late)
    (port,) = serve.serve(5, TOKEN, B, [], some=1)["some"]
    assert serve.unserve(patience) is done
    if done:
        serve._listener(socket.AF_INET, B, port).close()


def test_what_cannot_be_done_is_said(pair: tuple[Agent, Agent]) -> None:
    with pytest.raises(AgentRefused, match=r"node a: KeyError: 'nonsense'"):
        pair[0].get("nonsense", 1)
    with pytest.raises(AgentRefused, match=f"Errno {errno.ECONNREFUSED}"):
        pair[0].get("latency", 1, token=TOKEN, address=B, port=1)


def test_an_agent_that_ends_tells_those_who_wait(tmp_path: Path) -> None:
    with agent(tmp_path, "c", A) as gone:
        waiting = gone.ask("latency", 30, token=TOKEN, address="127.0.0.1", port=1)
        with pytest.raises(AgentRefused):
            gone.wait(waiting, "latency", 5)
        child = gone.get("prepare", 5, backend="gloo", env={})
        assert Path("/proc", str(child["pid"])).exists()
    with pytest.raises(AgentLost, match="node c: the agent's container ended"):
        gone.get("clock", 1)
    # and what it had started ended with it
    assert not Path("/proc", str(child["pid"])).exists()


def test_a_collective_that_cannot_be_tells_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch the process ends at its import, and its last words are kept."""
    monkeypatch.setattr(collective.pkgutil, "get_data", lambda *_: b"raise SystemExit('no torch here')")
    collective.prepare(1, "gloo", {})
    found = collective.allreduce(5, "gloo", 0, 2, A, 1, 1024)
    assert found == {"ok": False, "stage": "import", "late": False, "said": "no torch here"}
    monkeypatch.setattr(collective.pkgutil, "get_data", lambda *_: b"import time; time.sleep(60)")
    collective.prepare(1, "gloo", {})
    begin = time.monotonic()
    found = collective.allreduce(0.5, "gloo", 0, 2, A, 1, 1024)
    assert found == {"ok": False, "stage": "import", "late": True, "said": ""}
    assert time.monotonic() - begin < 5


def test_adapters_as_the_kernel_shows_them(tmp_path: Path) -> None:
    port = tmp_path / "sys/class/infiniband/rocep1s0/ports/1"
    for name, value in {
        "state": "4: ACTIVE\n",
        "link_layer": "Ethernet\n",
        "rate": "100 Gb/sec (4X EDR)\n",
        "gids/0": "fe80:0000:0000:0000:0200:00ff:fe00:0001\n",
        "gids/1": "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
        "gids/2": "0000:0000:0000:0000:0000:0000:0000:0000\n",
        "gid_attrs/types/0": "IB/RoCE v1\n",
        "gid_attrs/types/1": "RoCE v2\n",
        "gid_attrs/ndevs/0": "enp1s0\n",
        "gid_attrs/ndevs/1": "enp1s0\n",
    }.items():
        (port / name).parent.mkdir(parents=True, exist_ok=True)
        (port / name).write_text(value)
    (tmp_path / "sys/class/infiniband/rocep1s0/fw_ver").write_text("1.74\n")
    (found,) = (facts_module._adapter(item) for item in rdma.adapters(tmp_path))
    assert (found.device, found.port, found.state, found.link_layer) == ("rocep1s0", 1, "ACTIVE", "Ethernet")
    assert found.firmware == "1.74"
    assert [(gid.index, gid.type, gid.interface) for gid in found.gids] == [
        (0, "IB/RoCE v1", "enp1s0"),
        (1, "RoCE v2", "enp1s0"),
    ]


@pytest.mark.parametrize(
    ("rootless", "limit", "asked"),
    [(False, 8192, -1), (True, -1, -1), (True, 8192, None)],
)
def test_locked_memory_is_asked_for_where_the_engine_may_give_it(rootless: bool, limit: int, asked: int | None) -> None:
    """A rootless engine with less would start nothing, where TCP may do."""
    info = EngineInfo("podman", "5.0", "1.41", "unix:///x", rootless=rootless, runtime="crun")
    over = parse(["strix:uid=1000", "strix:gid=1000", f"strix:limits=1024 1024 {limit if limit >= 0 else 'unlimited'}"])
    engine: Any = SimpleNamespace(info=info)
    reached = Reached(Node("one", 0), engine, over)
    assert _request(reached, "image", rdma=True).memlock == asked
    assert _request(reached, "image", rdma=False).memlock is None
