"""What the agents told of nodes and of the ways between them, as frozen values, for checks and environments."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from strix_finetune.cluster.nodes import Cluster


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface. `addresses`: "10.0.0.1/24" in the kernel's order. `mbit`: 0 where the driver is silent.

    `kind`: ethernet, loopback, bridge, wireless, tunnel, virtual, thunderbolt, or the kernel's word (vlan, bond).
    """

    name: str
    addresses: tuple[str, ...] = ()
    mtu: int = 1500
    up: bool = True
    mbit: int = 0
    kind: str = "ethernet"

    def holds(self, address: str) -> bool:
        """Whether it has the address; the loopback has all of its network."""
        if any(known.partition("/")[0] == address for known in self.addresses):
            return True
        return self.kind == "loopback" and any(
            ipaddress.ip_address(address) in ipaddress.ip_interface(known).network for known in self.addresses
        )


@dataclass(frozen=True, slots=True)
class Gid:
    """An entry of a GID table. `type`: "RoCE v2" or "IB/RoCE v1"."""

    index: int
    gid: str
    type: str
    interface: str = ""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A port of an RDMA adapter. `state`: ACTIVE when it can be used. `link_layer`: Ethernet or InfiniBand."""

    device: str
    port: int
    state: str
    link_layer: str
    gids: tuple[Gid, ...] = ()
    rate: str = ""
    firmware: str = ""
    driver: str = ""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of one node. `address`: what peers reach it by; `interface`: the one that cluster.toml names.

    `clock_seconds`: by how much its clock is ahead of this machine's, None: not measured, and `clock_exact`: plus or
    minus. `sources`: peer's address → the address that this node sends from. `local_ports`: the range that the kernel
    takes ports from. `disk_free_bytes` is None where nobody could say. `taken`: port → why it cannot be listened on.
    `memlock_bytes` is -1 without a limit. `iommu_groups`: how many; none where the IOMMU is off.
    """

    name: str
    address: str
    interface: str = ""
    engine: str = ""
    image: str = ""
    image_id: str = ""
    image_digests: tuple[str, ...] = ()
    image_key: str = ""
    image_target: str = ""
    clock_seconds: float | None = None
    clock_exact: float = 0.0
    hostname: str = ""
    hostname_addresses: tuple[str, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    local_ports: tuple[int, int] = (32768, 60999)
    memory_bytes: int = 0
    memory_free_bytes: int = 0
    disk_free_bytes: int | None = None
    memlock_bytes: int = -1
    kernel: str = ""
    command_line: str = ""
    iommu_groups: int = 0
    ttm_pages: int = 0
    cwsr: str = ""
    gpus: tuple[str, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    uverbs: tuple[str, ...] = ()
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)
    taken: Mapping[int, str] = field(default_factory=dict, hash=False)

    @property
    def held(self) -> Interface | None:
        """The interface that holds the address that peers use."""
        return next((item for item in self.interfaces if item.holds(self.address)), None)

    @property
    def chosen(self) -> Interface | None:
        """The interface that training binds: the one of cluster.toml, else the one that holds the address."""
        if self.interface:
            return next((item for item in self.interfaces if item.name == self.interface), None)
        return self.held


@dataclass(frozen=True, slots=True)
class WayFacts:
    """What is known of the way from one node to another. Port → "open", "refused", "dropped", "stranger", or an error.

    `some`: the same of ports that the kernel chose over there, as it does for gloo and RCCL. `mtu_bytes`: the largest
    packet that passed whole, 0 when none did; `mtu_told`: what a router said of the way. `gbit` and the round trip
    `median_us` are None where they could not be measured; `stalled`: connections that stood still while sending.
    """

    sender: str
    receiver: str
    ports: Mapping[int, str] = field(default_factory=dict, hash=False)
    some: Mapping[int, str] = field(default_factory=dict, hash=False)
    mtu_bytes: int | None = None
    mtu_told: int = 0
    median_us: float | None = None
    least_us: float | None = None
    gbit: float | None = None
    stalled: int = 0

    @property
    def pair(self) -> tuple[str, str]:
        return self.sender, self.receiver


@dataclass(frozen=True, slots=True)
class Reduction:
    """How an all_reduce over all nodes went on one of them. `backend`: gloo or nccl (which RCCL is as well).

    `stage`: how far it came: import, imported, meet (at the head's port), group (each with each), small, done. `late`:
    the time was up. `said`: its last lines. `seconds` for the larger of two sums, in which each node sent at `gbit`.
    """

    node: str
    backend: str
    ok: bool
    stage: str = "done"
    said: str = ""
    late: bool = False
    seconds: float = 0.0
    gbit: float = 0.0


@dataclass(frozen=True, slots=True)
class Found:
    """All that was found out about a cluster; nodes in its order, the head first. Unreachable nodes are not in it."""

    cluster: Cluster
    nodes: tuple[NodeFacts, ...]
    ways: tuple[WayFacts, ...] = ()
    reductions: tuple[Reduction, ...] = ()

    @property
    def head(self) -> NodeFacts:
        return self.nodes[0]

    def node(self, name: str) -> NodeFacts:
        return next(node for node in self.nodes if node.name == name)


def told(base: NodeFacts, said: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of NodeFacts that the agent's answer to "facts" fills; `base` names the node."""
    interfaces = tuple(
        Interface(item["name"], tuple(item["addresses"]), item["mtu"], item["up"], item["mbit"], item["kind"])
        for item in said["interfaces"]
    )
    low, high = (*said["local_ports"], 32768, 60999)[:2]
    return {
        "hostname": said["hostname"],
        "hostname_addresses": tuple(said["hostname_addresses"]),
        "interfaces": interfaces,
        "local_ports": (low, high),
        "memory_bytes": said["memory_bytes"],
        "memory_free_bytes": said["memory_free_bytes"],
        "memlock_bytes": said["memlock_bytes"],
        "kernel": said["kernel"],
        "command_line": said["command_line"],
        "iommu_groups": said["iommu_groups"],
        "ttm_pages": said["ttm_pages"],
        "cwsr": said["cwsr"],
        "gpus": tuple(said["gpus"]),
        "adapters": tuple(_adapter(item) for item in said["rdma"]),
        "uverbs": tuple(name for name in said["uverbs"] if name.startswith("uverbs")),
        "python": said["python"],
        "packages": dict(said["packages"]),
    }


def _adapter(item: Mapping[str, Any]) -> Adapter:
    return Adapter(
        device=item["device"],
        port=item["port"],
        state=item["state"],
        link_layer=item["link_layer"],
        gids=tuple(Gid(gid["index"], gid["gid"], gid["type"], gid["interface"]) for gid in item["gids"]),
        rate=item["rate"],
        firmware=item["firmware"],
        driver=item["driver"],
    )


def slowest(ways: Iterable[WayFacts]) -> tuple[float, float] | None:
    """The least bandwidth (Gbit/s) and the longest round trip (µs) of all ways; None where nothing was measured."""
    measured = [(way.gbit, way.median_us) for way in ways if way.gbit and way.median_us is not None]
    if not measured:
        return None
    return min(gbit for gbit, _ in measured), max(us for _, us in measured if us is not None)
