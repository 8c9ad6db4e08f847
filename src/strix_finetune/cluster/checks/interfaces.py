"""The interface and the address that gloo and RCCL bind on each node, which are given to them by name."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from strix_finetune.cluster.facts import Found, Interface, NodeFacts
from strix_finetune.cluster.findings import Finding

NAME = "interface"
# what is no way to another machine, or not one that training should take
_ODD = {
    "bridge": "a bridge, often one of containers",
    "tunnel": "a tunnel, which costs bandwidth",
    "wireless": "wireless, which loses packets and time",
}


def check(found: Found) -> Iterator[Finding]:
    for node in found.nodes:
        if node.interfaces:
            yield from _node(node, found)


def _node(node: NodeFacts, found: Found) -> Iterator[Finding]:
    several = len(found.nodes) > 1
    cure = f"correct 'interface' of {node.name} in {found.cluster.path.name}, or leave it out"
    chosen, held = node.chosen, node.held
    where = (node.name,)
    if chosen is None and node.interface:
        says = f"there is no interface {node.interface} here; there are {_list(node)}"
        yield Finding(NAME, "failure", where, says, cure, {"interface": node.interface})
        return
    if chosen is None or held is None:
        says = f"no interface here has the address {node.address}; there are {_list(node)}"
        cure = f"correct 'address' of {node.name} in {found.cluster.path.name} (behind NAT gloo and RCCL cannot work)"
        yield Finding(NAME, "failure", where, says, cure, {"address": node.address})
        return
    if chosen.name != held.name:
        has = ", ".join(chosen.addresses) or "no address"
        says = f"{chosen.name} has {has}, and peers expect {node.address}, which {held.name} holds"
        yield Finding(NAME, "failure", where, says, cure, {"interface": chosen.name, "holder": held.name})
        return
    if not chosen.up:
        says = f"{chosen.name} carries nothing: it is down"
        yield Finding(NAME, "failure", where, says, f"plug it in, or `sudo ip link set {chosen.name} up`")
        return
    if chosen.kind == "loopback" and several and not all(_loopback(each.address) for each in found.nodes):
        says = f"{node.address} is on the loopback, which no other node can reach"
        yield Finding(NAME, "failure", where, says, f"give {node.name} the 'address' that the others see")
        return
    data: dict[str, str | int] = {"interface": chosen.name, "address": node.address, "mbit": chosen.mbit}
    yield Finding(NAME, "ok", where, f"gloo and RCCL bind {chosen.name} ({node.address})", data=data)
    yield from _doubts(node, chosen, found)


def _doubts(node: NodeFacts, chosen: Interface, found: Found) -> Iterator[Finding]:
    where = (node.name,)
    odd = _ODD.get(chosen.kind)
    others = [
        item
        for item in node.interfaces
        if item.name != chosen.name and item.up and item.kind in ("ethernet", "thunderbolt") and _global(item)
    ]
    if odd:
        use = f"use {others[0].name} ({_global(others[0])[0]})" if others else "use a cable"
        yield Finding(NAME, "warning", where, f"{chosen.name} is {odd}", f"{use}: set 'address'")
    faster = [item for item in others if item.mbit > max(chosen.mbit, 1) and chosen.mbit]
    if faster and not odd:
        says = f"{faster[0].name} is faster ({faster[0].mbit} Mbit/s) than {chosen.name} ({chosen.mbit} Mbit/s)"
        cure = f"where it leads to the other nodes, set 'address' to {_global(faster[0])[0]}"
        yield Finding(NAME, "warning", where, says, cure)
    first = _first(chosen, node.address)
    if first and first != node.address and chosen.kind != "loopback":
        # both libraries take the first address of a family, in the kernel's order
        says = f"{chosen.name} has {first} before {node.address}, and gloo and RCCL take the first one"
        yield Finding(NAME, "warning", where, says, f"let {first} be the 'address', or remove it from {chosen.name}")
    for peer in found.nodes:
        source = node.sources.get(peer.address)
        if peer.name == node.name or source is None or source == node.address:
            continue
        pair = (node.name, peer.name)
        if not source:
            says = f"there is no route from here to {peer.address}"
            yield Finding("route", "failure", pair, says, "check addresses and netmasks of both")
        elif not chosen.holds(source):
            by = next((item.name for item in node.interfaces if item.holds(source)), "?")
            says = f"the way to {peer.address} leaves by {by} ({source}), and gloo and RCCL bind {chosen.name}"
            cure = f"`ip route get {peer.address}` there; give both nodes addresses of one network"
            yield Finding("route", "warning", pair, says, cure)
    if node.hostname_addresses and _loopback(node.hostname_addresses[0]):
        # no fault: the interface is given to all who would ask the name
        says = f"its name {node.hostname} means {node.hostname_addresses[0]}; training does not ask it"
        yield Finding("hostname", "ok", where, says, data={"hostname": node.hostname})


def _list(node: NodeFacts) -> str:
    """The interfaces with addresses, the likely ones first."""
    likely = sorted(node.interfaces, key=lambda item: (item.kind != "ethernet", not item.up))
    named = [f"{item.name} ({_global(item)[0]})" for item in likely if _global(item)]
    return ", ".join(named[:5]) or "none with an address"


def _global(item: Interface) -> list[str]:
    """Its addresses that other machines may reach it by."""
    found = [ipaddress.ip_interface(text).ip for text in item.addresses]
    return [str(address) for address in found if not address.is_loopback and not address.is_link_local]


def _loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _first(item: Interface, address: str) -> str:
    """The first address of the same family."""
    version = ipaddress.ip_address(address).version
    found = (ipaddress.ip_interface(text).ip for text in item.addresses)
    return next((str(each) for each in found if each.version == version), "")
