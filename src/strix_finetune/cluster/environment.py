"""The variables that training gets on each node: made of what the check found, the same on all but for the interface.

Pure: `cluster check` shows them, `cluster train` sets them. Names and meanings are those of NCCL's and RCCL's own
documentation of environment variables, and of torch's gloo and tensorpipe.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from strix_finetune.cluster.facts import Adapter, Gid, NodeFacts, WayFacts, slowest
from strix_finetune.cluster.nodes import Cluster

# GPUs that share their memory with the processor: an adapter cannot write to it past the host (no GPUDirect)
UNIFIED = frozenset({"gfx1150", "gfx1151", "gfx1152", "gfx1153", "gfx1103", "gfx1033", "gfx1035", "gfx1036", "gfx90c"})
# 4.096 µs × 2^23 is half a minute: what a switch that pauses traffic may need; retries at their most
_IB_TIMEOUT, _IB_RETRIES = "23", "7"


@dataclass(frozen=True, slots=True)
class Rdma:
    """A port of an adapter for one node, and the entry of its GID table; none on native InfiniBand."""

    adapter: Adapter
    gid: Gid | None

    @property
    def hca(self) -> str:
        return f"{self.adapter.device}:{self.adapter.port}"


def usable(facts: NodeFacts) -> list[Rdma]:
    """The active ports of adapters that reach the peers: on RoCE those with a GID on the interface that is chosen.

    RoCE v2 before v1, which does not leave its Ethernet segment, and the GID of the node's own address before others.
    """
    found = []
    for adapter in facts.adapters:
        if "ACTIVE" not in adapter.state:
            continue
        if adapter.link_layer == "InfiniBand":
            found.append(Rdma(adapter, None))
            continue
        interface = facts.chosen
        gids = [gid for gid in adapter.gids if interface and gid.interface == interface.name]
        if gids:
            best = min(gids, key=lambda gid: (gid.type != "RoCE v2", not _is(gid.gid, facts.address), gid.index))
            found.append(Rdma(adapter, best))
    return found


def _is(gid: str, address: str) -> bool:
    """Whether a GID says an IP address: IPv4 is mapped into IPv6."""
    try:
        given = ipaddress.IPv6Address(gid)
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return False
    return given == wanted or given.ipv4_mapped == wanted


def by_rdma(cluster: Cluster, nodes: Sequence[NodeFacts]) -> bool:
    """Whether RCCL goes by RDMA: where it was asked for, or every node has exactly one way to do so and its devices."""
    if cluster.link in ("ethernet", "thunderbolt"):
        return False
    if cluster.link == "rdma":
        return True
    return len(nodes) > 1 and all(len(usable(node)) == 1 and node.uverbs for node in nodes)


def environment(
    cluster: Cluster,
    node: NodeFacts,
    nodes: Sequence[NodeFacts],
    ways: Sequence[WayFacts] = (),
    timeout: int | None = None,
) -> dict[str, str]:
    """The variables of `node`. `timeout`: seconds until a collective is given up, None for `train`'s own."""
    found: dict[str, str] = {}
    interface = node.chosen
    if interface:
        # "=": RCCL would take the name for a beginning, and eth1 for eth10 as well
        found["NCCL_SOCKET_IFNAME"] = f"={interface.name}"
        found["GLOO_SOCKET_IFNAME"] = interface.name
        found["TP_SOCKET_IFNAME"] = interface.name
    if ":" in node.address:
        found["NCCL_SOCKET_FAMILY"] = "AF_INET6"
    ports = usable(node)
    if by_rdma(cluster, nodes) and ports:
        # exactly one: several of different kinds make RCCL fail when it connects them
        found["NCCL_IB_HCA"] = f"={ports[0].hca}"
        if ports[0].gid:
            found["NCCL_IB_GID_INDEX"] = str(ports[0].gid.index)
        found["NCCL_IB_TIMEOUT"] = _IB_TIMEOUT
        found["NCCL_IB_RETRY_CNT"] = _IB_RETRIES
    else:
        found["NCCL_IB_DISABLE"] = "1"
    if any(gpu in UNIFIED for gpu in node.gpus):
        found["NCCL_NET_GDR_LEVEL"] = "0"
    measured = slowest(ways)
    if measured:
        # the slowest way, on all nodes: every rank must choose alike
        found["STRIX_LINK_GBIT"] = f"{measured[0]:g}"
        found["STRIX_LINK_US"] = f"{measured[1]:g}"
    found["STRIX_PORTS"] = str(cluster.ports)
    if timeout is not None:
        found["STRIX_DIST_TIMEOUT"] = str(timeout)
    return found
