"""The check as a command, and its steps as far as they need no engine."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from rich.console import Console

from strix_finetune.cli import main
from strix_finetune.cluster import show
from strix_finetune.cluster.agents import Agent
from strix_finetune.cluster.examine import Examined, _reduce
from strix_finetune.cluster.facts import Found, Interface, NodeFacts
from strix_finetune.cluster.findings import Finding
from strix_finetune.cluster.nodes import Cluster, Node, Ports
from strix_finetune.cluster.ways import measure, sample, serve, token, tournament, try_ports
from tests.sshd import serving
from tests.unit.cluster.agentprocess import agent
from tests.unit.cluster.test_agent import A, B, free_ports

LO = Interface("lo", ("127.0.0.1/8",), 65536, kind="loopback")


def test_a_node_that_cannot_be_reached_is_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('image = "localhost/x:1"\n[[nodes]]\nname = "one"\nssh = "node"\n')
    with serving(tmp_path / "s") as sshd:
        sshd.known.write_text("")
        monkeypatch.setenv("PATH", sshd.env()["PATH"])
        assert main(["cluster", "check", str(file), "--json"]) == 1
        said = json.loads(capsys.readouterr().out)
        assert main(["cluster", "check", str(file), "--brief"]) == 1
        shown = capsys.readouterr().out
    assert said["failed"] is True
    assert said["image"] == "localhost/x:1"
    assert said["counts"] == {"failure": 1, "warning": 0, "ok": 0}
    (finding,) = said["findings"]
    assert finding["check"] == "engine"
    assert finding["nodes"] == ["one"]
    assert finding["says"] == "the host key of node is not known here"
    assert "cure: run `ssh node true` once" in shown
    assert "training would fail: 1 failure" in shown


def test_a_wrong_file_is_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "check", str(tmp_path / "none.toml")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/none.toml: the file is missing; create it\n"
    assert main(["cluster", "chek"]) == 2
    assert "there is no command 'cluster chek'; did you mean 'check'?" in capsys.readouterr().err


def test_two_agents_try_the_ways_between_them(tmp_path: Path) -> None:
    ports = free_ports(10)
    # both are on this machine, where no port can be had on all addresses while the other one listens
    cluster = Cluster(Path("c"), (Node("head", 0), Node("a", 1), Node("b", 2)), ports=Ports(ports[0], ports[-1]))
    nodes = {"a": NodeFacts("a", A, interfaces=(LO,)), "b": NodeFacts("b", B, interfaces=(LO,))}
    with agent(tmp_path, "a", A) as first, agent(tmp_path, "b", B) as second:
        both, secret = (first, second), token()
        served = serve(both, nodes, cluster, secret)
        assert {name: item.ports for name, item in served.items()} == {"a": tuple(ports), "b": tuple(ports)}
        tried = try_ports(both, nodes, served, secret)
        assert [way.pair for way in tried] == [("a", "b"), ("b", "a")]
        for way in tried:
            assert set(way.ports.values()) == set(way.some.values()) == {"open"}
            assert len(way.some) == 16
            assert way.mtu_bytes == 65535
        for way in measure(both, nodes, tried, secret):
            assert way.gbit
            assert way.median_us
            assert not way.stalled
        # whom nobody serves is not tried
        assert [way.pair for way in try_ports(both, nodes, {"a": served["a"]}, secret)] == [("b", "a")]


def test_an_agent_that_is_gone_leaves_ways_unmeasured(tmp_path: Path) -> None:
    ports = free_ports(10)
    # both are on this machine, where no port can be had on all addresses while the other one listens
    cluster = Cluster(Path("c"), (Node("head", 0), Node("a", 1), Node("b", 2)), ports=Ports(ports[0], ports[-1]))
    nodes = {"a": NodeFacts("a", A, interfaces=(LO,)), "b": NodeFacts("b", B, interfaces=(LO,))}
    with agent(tmp_path, "a", A) as first:
        with agent(tmp_path, "b", B) as second:
            served = serve((first, second), nodes, cluster, secret := token())
        there, back = try_ports((first, second), nodes, served, secret)
        assert set(there.ports.values()) == {"refused"}
        assert set(back.ports.values()) == {"dropped"}
        assert all(way.gbit is None for way in measure((first, second), nodes, (there, back), secret))


def test_rounds_have_every_way_once_and_no_node_twice() -> None:
    from strix_finetune.cluster.facts import WayFacts

    names = "abcdef"
    ways = [WayFacts(one, other) for one in names for other in names if one != other]
    rounds = list(tournament(ways))
    assert sorted(way.pair for each in rounds for way in each) == sorted(way.pair for way in ways)
    for each in rounds:
        busy = [name for way in each for name in way.pair]
        assert len(busy) == len(set(busy))
    assert len(rounds) <= 15


def test_a_wide_range_is_sampled_with_its_ends() -> None:
    assert sample(Ports(29400, 29499)) == list(range(29400, 29500))
    some = sample(Ports(20000, 30000))
    assert len(some) == 256
    assert (some[0], some[-1]) == (20000, 30000)
    assert max(b - a for a, b in itertools.pairwise(some)) <= 40


def test_an_all_reduce_that_would_hang_is_not_tried() -> None:
    found = Found(Cluster(Path("c"), (Node("a", 0),)), (NodeFacts("a", A),))
    findings = [Finding("ports", "failure", ("a", "b"), "shut", "open them")]
    asked: list[Agent] = []
    assert _reduce(found, asked, findings, [], lambda text: None, 0.0) is found
    assert findings[-1].says == "not tried, since ports failed on a > b"
    # nor one whose port our own probes still hold
    late = [Finding("ports", "warning", ("b",), "not closed", "check again")]
    assert _reduce(found, asked, findings := [*late], late, lambda text: None, 0.0) is found
    assert findings[-1].says == "not tried, since ports failed on b"


def test_variables_that_are_alike_are_shown_once() -> None:
    cluster = Cluster(Path("cluster.toml"), (Node("a", 0), Node("b", 1)))
    variables = {"a": {"NCCL_IB_DISABLE": "1", "GLOO": "eth0"}, "b": {"NCCL_IB_DISABLE": "1", "GLOO": "eth1"}}
    findings = (Finding("clock", "ok", (), "fine"), Finding("room", "warning", ("b",), "little", "free some"))
    examined = Examined(cluster, "x", findings, variables, None, 3.2)
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    show.table(examined, console)
    text = console.export_text()
    assert "training gets: NCCL_IB_DISABLE=1\n  on a: GLOO=eth0\n  on b: GLOO=eth1" in text
    assert "cure: free some" in text
    assert text.rstrip().endswith("training can start: 1 warning, 1 ok (3 s)")
