"""RDMA: devices, locked memory, one port of one adapter with the right GID on each node, alike on all."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.cluster.environment import by_rdma, usable
from strix_finetune.cluster.facts import Found, NodeFacts
from strix_finetune.cluster.findings import Finding

NAME = "rdma"


def check(found: Found) -> Iterator[Finding]:
    if found.cluster.link == "thunderbolt":
        yield from _thunderbolt(found)
    if not by_rdma(found.cluster, found.nodes):
        yield from _not_taken(found)
        return
    for node in found.nodes:
        if node.interfaces:
            yield from _node(node)
    yield from _alike(found)


def _thunderbolt(found: Found) -> Iterator[Finding]:
    for node in found.nodes:
        chosen = node.chosen
        if chosen and chosen.kind != "thunderbolt":
            says = f"{chosen.name} is no interface of Thunderbolt ({chosen.kind})"
            cure = "give the 'address' of thunderbolt0, or correct 'link'"
            yield Finding("interface", "warning", (node.name,), says, cure)


def _not_taken(found: Found) -> Iterator[Finding]:
    """Adapters that are there and not used: said, so that nobody thinks that they are."""
    if found.cluster.link != "auto" or not any(node.adapters for node in found.nodes):
        return
    for node in found.nodes:
        ports = usable(node)
        if len(ports) == 1 and node.uverbs:
            continue
        why = (
            "no active port of an adapter belongs to the interface"
            if not ports
            else "the container has no /dev/infiniband/uverbs*"
            if not node.uverbs
            else f"{len(ports)} ports could be meant ({', '.join(port.hca for port in ports)})"
        )
        says = f"RCCL goes by TCP, since {why}"
        yield Finding(NAME, "warning", (node.name,), says, 'set link = "rdma" to have RDMA, "ethernet" for TCP')


def _node(node: NodeFacts) -> Iterator[Finding]:
    where = (node.name,)
    if not node.adapters:
        says = "there is no RDMA adapter here"
        yield Finding(
            NAME, "failure", where, says, "load its driver (`sudo modprobe irdma` or mlx5_ib), or change 'link'"
        )
        return
    if not node.uverbs:
        says = "there are adapters, and no /dev/infiniband/uverbs* in the container"
        yield Finding(NAME, "failure", where, says, "`sudo modprobe ib_uverbs`, and let this user use the device")
    ports = usable(node)
    if not ports:
        states = ", ".join(f"{item.device}:{item.port} {item.state or 'unknown'}" for item in node.adapters)
        interface = node.chosen.name if node.chosen else node.interface
        says = f"no active port of an adapter belongs to {interface} ({states})"
        yield Finding(NAME, "failure", where, says, "give the 'address' of the adapter's own interface, and plug it in")
        return
    taken = ports[0]
    if len(ports) > 1:
        rest = ", ".join(port.hca for port in ports[1:])
        says = f"{taken.hca} is taken of several ({rest})"
        yield Finding(
            NAME, "warning", where, says, "RCCL gets exactly one; give the 'address' of the one that you mean"
        )
    if node.memlock_bytes >= 0:
        says = f"only {node.memlock_bytes >> 20} MiB of memory may be locked in the container"
        cure = "set memlock to unlimited for this user and its engine (/etc/security/limits.d; LimitMEMLOCK=infinity)"
        yield Finding(NAME, "failure", where, says, cure, {"memlock_bytes": node.memlock_bytes})
    gid = taken.gid
    if gid and gid.type != "RoCE v2":
        says = f"{taken.hca} has no GID of RoCE v2 on its interface, only {gid.type}"
        yield Finding(NAME, "warning", where, says, "give the interface an IP address before the driver is loaded")
    number = f", GID {gid.index} ({gid.type})" if gid else ""
    firmware = f", firmware {taken.adapter.firmware}" if taken.adapter.firmware else ""
    data = {"hca": taken.hca, "firmware": taken.adapter.firmware, "gid_index": gid.index if gid else None}
    yield Finding(NAME, "ok", where, f"RCCL uses {taken.hca}{number}{firmware}", data=data)


def _alike(found: Found) -> Iterator[Finding]:
    ports = {node.name: usable(node)[0] for node in found.nodes if usable(node)}
    names = list(ports)
    for name in names[1:]:
        one, other = ports[names[0]], ports[name]
        if one.adapter.link_layer != other.adapter.link_layer:
            says = f"it is {other.adapter.link_layer} here and {one.adapter.link_layer} on {names[0]}"
            yield Finding(NAME, "failure", (name,), says, "connect all nodes by one kind of link")
        elif one.gid and other.gid and one.gid.type != other.gid.type:
            says = f"it is {other.gid.type} here and {one.gid.type} on {names[0]}"
            yield Finding(NAME, "failure", (name,), says, "give both interfaces addresses, so that both have RoCE v2")
        elif one.adapter.driver == other.adapter.driver and one.adapter.firmware != other.adapter.firmware:
            says = f"the adapter's firmware is {other.adapter.firmware} here and {one.adapter.firmware} on {names[0]}"
            yield Finding(NAME, "warning", (name,), says, "update both to the same")
