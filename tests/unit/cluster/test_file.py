"""cluster.toml: what it may say, and every fault with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from strix_finetune.cluster.file import read
from strix_finetune.cluster.nodes import Ports
from strix_finetune.errors import InputError


def faults(folder: Path, text: str) -> list[str]:
    file = folder / "cluster.toml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read(file)
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


def test_what_is_left_out_is_found_later(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('[[nodes]]\n[[nodes]]\nssh = "ada@strix2.lan"\nengine = "podman"\n')
    found = read(file)
    assert found.image == ""
    assert found.link == "auto"
    assert found.ports == Ports(29400, 29499)
    assert len(found.ports) == 100
    head, other = found.nodes
    assert (head.name, head.rank, head.local, head.wanted) == ("this-machine", 0, True, "auto")
    assert (other.name, other.rank, other.local, other.wanted, other.url) == ("strix2.lan", 1, False, "podman", "")
    assert str(other.place) == f"{file}:2"


@pytest.mark.parametrize(
    ("ssh", "name"),
    [
        ("strix1", "strix1"),
        ("u@strix1", "strix1"),
        ("ssh://u@strix1:2222", "strix1"),
        ("ssh://u@[fe80::1]:22", "fe80::1"),
        ("ssh://u@[fd00::2]/", "fd00::2"),
        ("u@fd00::2", "fd00::2"),
        ("fe80::12%eth0", "fe80::12%eth0"),
    ],
)
def test_a_node_is_called_like_its_host(tmp_path: Path, ssh: str, name: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(f'[[nodes]]\nssh = "{ssh}"\n')
    assert read(file).head.name == name


def test_every_fault_has_its_line(tmp_path: Path) -> None:
    text = """\
ports = "29400-29401"
workdir = "../x"
[[nodes]]
ssh = "-oProxyCommand=reboot"
processes = 0
[[nodes]]
name = "a b"
engine = "/run/docker.sock"
interface = "a name that is too long"
address = "strix1"
"""
    assert faults(tmp_path, text) == [
        "cluster.toml:1: 'ports' holds 2 ports; give 8 or more",
        (
            "cluster.toml:2: '../x' is no folder for runs; "
            "write a folder below the home, or an absolute path, without '..'"
        ),
        "cluster.toml:4: '-oProxyCommand=reboot' is no destination of ssh; write user@host",
        "cluster.toml:5: 0 is no number of processes; 1 to 64",
        "cluster.toml:7: 'a b' is no name; use letters, digits, '.', '_' and '-'",
        (
            "cluster.toml:8: '/run/docker.sock' is no engine address; "
            "use docker, podman, unix:///path/to/socket or tcp://host:port"
        ),
        (
            "cluster.toml:9: 'a name that is too long' is no name of a network interface; "
            "write one that `ip link` shows there"
        ),
        "cluster.toml:10: 'strix1' is no IP address; write what peers see of it",
    ]


def test_nodes_are_different_machines(tmp_path: Path) -> None:
    text = '[[nodes]]\n[[nodes]]\nname = "b"\n[[nodes]]\nname = "b"\nssh = "c"\n'
    assert faults(tmp_path, text) == [
        "cluster.toml:2: 'this-machine' and 'b' both are this machine; give one of them 'ssh'",
        "cluster.toml:4: two nodes are called 'b'; give one of them another 'name' (the other is in line 2)",
    ]
    text = '[[nodes]]\naddress = "10.0.0.1"\n[[nodes]]\nssh = "b"\naddress = "10.0.0.1"\n'
    assert faults(tmp_path, text) == ["cluster.toml:5: 'this-machine' has the address 10.0.0.1, too"]
    assert faults(tmp_path, '[[nodes]]\naddress = "0.0.0.0"\n') == [
        "cluster.toml:2: '0.0.0.0' is no address of one machine; write what peers see of it"
    ]


def test_mistyped_words(tmp_path: Path) -> None:
    assert faults(tmp_path, 'prts = "1-2"\nlink = "rmda"\n[[nodes]]\nhost = "a"\n') == [
        "cluster.toml:2: 'link' cannot be 'rmda'; did you mean 'rdma'?",
        "cluster.toml:4: unknown key 'nodes.0.host'; known: address, engine, interface, name, processes, ssh",
        "cluster.toml:1: unknown key 'prts'; did you mean 'ports'?",
    ]
    assert faults(tmp_path, "") == ["cluster.toml:1: the key 'nodes' is missing; add it"]
    assert faults(tmp_path, 'ports = "80-90"\n[[nodes]]\n') == [
        "cluster.toml:1: '80-90' is no range of ports; write two numbers from 1024 to 65535, as in 29400-29499"
    ]
