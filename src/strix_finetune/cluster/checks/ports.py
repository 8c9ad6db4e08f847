"""Which ports are open between nodes: those of cluster.toml, and those that gloo and RCCL choose by themselves.

Neither can be told which ports to listen on: they take what the kernel gives them, from
net.ipv4.ip_local_port_range of the machine (a container with the machine's network has no range of its own).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from strix_finetune.cluster.facts import Found, NodeFacts, WayFacts
from strix_finetune.cluster.findings import Datum, Finding

NAME = "ports"
_WHY = {
    "dropped": "nothing comes back, as with a firewall that drops",
    "refused": "refused",
    "stranger": "another program answers",
    "EHOSTUNREACH": "a firewall or router says that there is no way",
    "ENETUNREACH": "there is no route",
    "EACCES": "the node's own firewall forbids it",
    "EPERM": "the node's own firewall forbids it",
}


def check(found: Found) -> Iterator[Finding]:
    for node in found.nodes:
        yield from _taken(node, found)
    bad = 0
    for way in found.ways:
        finding = _way(way, found)
        bad += finding is not None
        if finding:
            yield finding
    if found.ways and not bad:
        count = len(found.ways[0].ports)
        tried = sum(len(way.some) for way in found.ways)
        says = f"{count} ports of {found.cluster.ports} and {tried} others are open between all nodes, both ways"
        yield Finding(NAME, "ok", (), says)


def _taken(node: NodeFacts, found: Found) -> Iterator[Finding]:
    first = found.cluster.ports.first
    used = sorted(port for port, why in node.taken.items() if why == "taken")
    if node.name == found.head.name and first in used:
        says = f"port {first}, where the nodes meet, is taken by another program here"
        cure = f"end it (`sudo ss -ltnp 'sport = :{first}'` names it), or change 'ports'"
        yield Finding(NAME, "failure", (node.name,), says, cure, {"port": first})
        used.remove(first)
    if used:
        says = f"port{'s' * (len(used) > 1)} {ranges(used)} of the range {'are' if len(used) > 1 else 'is'} taken here"
        cure = f"`sudo ss -ltnp` names the program{'s' * (len(used) > 1)}; end them, or change 'ports'"
        yield Finding(NAME, "warning", (node.name,), says, cure, {"ports": ranges(used)})
    other = sorted({why for why in node.taken.values() if why not in ("taken", "no-address")})
    if other:
        says = f"ports cannot be listened on here ({', '.join(other)})"
        yield Finding(NAME, "failure", (node.name,), says, "see whether a sandbox or limits forbid it")


def _way(way: WayFacts, found: Found) -> Finding | None:
    shut = {port: state for port, state in way.ports.items() if state != "open"}
    hidden = {port: state for port, state in way.some.items() if state != "open"}
    if not shut and not hidden:
        return None
    sender, receiver = found.node(way.sender), found.node(way.receiver)
    low, high = receiver.local_ports
    why = _why({**shut, **hidden})
    data: dict[str, Datum] = {"blocked": ranges(sorted(shut)), "state": why, "others_blocked": len(hidden)}
    cure = (
        f"let {receiver.name} take all TCP from {sender.address}: "
        f"`sudo firewall-cmd --permanent --zone=trusted --add-source={sender.address} && sudo firewall-cmd --reload`, "
        f"or `sudo ufw allow from {sender.address}`"
    )
    back = next((other for other in found.ways if other.pair == (way.receiver, way.sender)), None)
    if len(shut) == len(way.ports) and len(hidden) == len(way.some):
        says = f"no TCP port of {receiver.address} can be reached ({why})"
        if back and "dropped" in {*back.ports.values(), *back.some.values()} and why == _WHY["dropped"]:
            # a firewall that forgets who asked also drops the answers
            says += f", unless {sender.name} itself drops the answers"
    elif shut:
        says = f"ports {ranges(sorted(shut))} of {receiver.address} cannot be reached ({why})"
        says += f", nor those that gloo and RCCL choose ({low}-{high})" if hidden else ""
    else:
        says = f"{found.cluster.ports} are open, but not the ports that gloo and RCCL choose ({low}-{high}: {why})"
    return Finding(NAME, "failure", way.pair, says, cure, data)


def _why(states: Mapping[int, str]) -> str:
    """The most frequent reason, in words."""
    words = list(states.values())
    most = max(sorted(set(words)), key=words.count)
    return _WHY.get(most, most)


def ranges(ports: Sequence[int]) -> str:
    """Sorted ports in few words: 1-3, 7."""
    parts: list[list[int]] = []
    for port in ports:
        if parts and port == parts[-1][1] + 1:
            parts[-1][1] = port
        else:
            parts.append([port, port])
    return ", ".join(f"{first}-{last}" if first != last else str(first) for first, last in parts)
