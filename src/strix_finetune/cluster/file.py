"""cluster.toml: the machines that train together."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

from pydantic import Field

from strix_finetune import tomlfile
from strix_finetune.cluster.nodes import Cluster, Link, Node, Ports
from strix_finetune.errors import InputError, Place, Problem
from strix_finetune.model import Source
from strix_finetune.schema import Strict

NAME = "cluster.toml"
# key of a node → (what it must be, what to do): the schema alone would only quote the pattern
_FORMS = {
    "name": (r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?", "is no name", "use letters, digits, '.', '_' and '-'"),
    # an option, or several words, would be ssh's to run
    "ssh": (r"[^\s\-'\"`$;&|<>()\\][^\s'\"`$;&|<>()\\]*", "is no destination of ssh", "write user@host"),
    "engine": (
        r"docker|podman|(unix:///|tcp://|https?://)\S+",
        "is no engine address",
        "use docker, podman, unix:///path/to/socket or tcp://host:port",
    ),
    # the kernel's own limits
    "interface": (r"[^\s/:]{1,15}", "is no name of a network interface", "write one that `ip link` shows there"),
}
# the rendezvous, the store of torch.distributed, one for each process that listens, and something to spare
_FEWEST_PORTS = 8


class NodeEntry(Strict):
    """One `[[nodes]]`. The first one is the head, where the rendezvous is.

    `ssh`: an OpenSSH destination as ~/.ssh/config knows it; without it and without an address in `engine` it is this
    machine. `engine`: docker or podman, or the address of the engine's socket on that node, else found there.
    `address`: what peers reach it by, else the one that ssh reached. `interface`: else the one that holds the address.
    `processes`: else one a GPU, or 1.
    """

    name: str | None = None
    ssh: str | None = None
    engine: str | None = None
    address: str | None = None
    interface: str | None = None
    processes: int | None = None


class ClusterFile(Strict):
    """cluster.toml. `image` is the same on all nodes; `ports`: all that training may listen on between nodes;
    `workdir`: on each node, below the user's home or absolute."""

    image: str = Field(default="", max_length=512)
    link: Link = "auto"
    ports: str = "29400-29499"
    workdir: str = "strix-finetune"
    nodes: list[NodeEntry] = Field(min_length=1)


def read(path: Path) -> Cluster:
    """Read and check the file; every fault with file:line. Raises InputError."""
    problems: list[Problem] = []
    found = tomlfile.read(path, ClusterFile, problems)
    if found is None:
        raise InputError(problems)
    spec, source = found
    cluster = _cluster(spec, source, problems)
    if problems:
        raise InputError(problems)
    return cluster


def _cluster(spec: ClusterFile, source: Source, problems: list[Problem]) -> Cluster:
    def at(*keys: str | int) -> Place:
        return Place(source.path, source.positions.line(keys))

    ends = re.fullmatch(r"(\d{1,5})-(\d{1,5})", spec.ports)
    first, last = (int(ends[1]), int(ends[2])) if ends else (0, 0)
    if not 1024 <= first <= last <= 65535:
        cure = "write two numbers from 1024 to 65535, as in 29400-29499"
        problems.append(Problem(f"'{spec.ports}' is no range of ports", at("ports"), cure))
    elif last - first + 1 < _FEWEST_PORTS:
        problems.append(
            Problem(f"'ports' holds {last - first + 1} ports", at("ports"), f"give {_FEWEST_PORTS} or more")
        )
    if not spec.workdir.strip("/") or ".." in spec.workdir.split("/") or not spec.workdir.isprintable():
        cure = "write a folder below the home, or an absolute path, without '..'"
        problems.append(Problem(f"'{spec.workdir}' is no folder for runs", at("workdir"), cure))
    nodes: list[Node] = []
    for rank, entry in enumerate(spec.nodes):
        name = entry.name or _name(entry)
        if same := next((node for node in nodes if node.name == name), None):
            cure = f"give one of them another 'name' (the other is in line {same.place.line if same.place else '?'})"
            problems.append(Problem(f"two nodes are called '{name}'", at("nodes", rank), cure))
        for key, (form, what, cure) in _FORMS.items():
            value = getattr(entry, key)
            if value is not None and not re.fullmatch(form, value):
                problems.append(Problem(f"'{value[:60]}' {what}", at("nodes", rank, key), cure))
        if entry.processes is not None and not 1 <= entry.processes <= 64:
            problems.append(
                Problem(f"{entry.processes} is no number of processes", at("nodes", rank, "processes"), "1 to 64")
            )
        address = entry.address or ""
        if address and (fault := _address_fault(address)):
            problems.append(Problem(f"'{address}' {fault}", at("nodes", rank, "address"), "write what peers see of it"))
        node = Node(
            name=name,
            rank=rank,
            ssh=entry.ssh or "",
            engine=entry.engine or "",
            address=address,
            interface=entry.interface or "",
            processes=entry.processes or 0,
            place=at("nodes", rank),
        )
        for other in nodes:
            if address and other.address == address:
                problems.append(Problem(f"'{other.name}' has the address {address}, too", at("nodes", rank, "address")))
            elif node.local and other.local and not node.engine and not other.engine:
                cure = "give one of them 'ssh'"
                problems.append(Problem(f"'{other.name}' and '{name}' both are this machine", at("nodes", rank), cure))
        nodes.append(node)
    return Cluster(source.path, tuple(nodes), spec.image, spec.link, Ports(first, last), spec.workdir)


def _name(entry: NodeEntry) -> str:
    """The host in an ssh destination: user@host, ssh://user@host:port."""
    if entry.ssh:
        host = re.sub(r"^ssh://", "", entry.ssh).rpartition("@")[2]
        # the last part of an IPv6 address without brackets is no port
        return host if re.fullmatch(r"[^\[\]]*:[^\[\]]*:[^\[\]]*", host) else re.sub(r":\d+$", "", host).strip("[]/")
    if entry.engine and "://" in entry.engine and not entry.engine.startswith("unix://"):
        return re.sub(r":\d+$", "", entry.engine.partition("://")[2])
    return "this-machine"


def _address_fault(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return "is no IP address"
    if found.is_unspecified or found.is_multicast:
        return "is no address of one machine"
    return ""
