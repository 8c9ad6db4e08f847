"""What passes between nodes: the largest packet, bandwidth and round trip."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.cluster.facts import Found, WayFacts, slowest
from strix_finetune.cluster.findings import Datum, Finding

# below this, gradients take longer than what they are computed from, whatever the strategy
_SLOW_GBIT = 0.5
# of what the cable could: less is a bad cable, a shared switch, or a slow slot
_SHARE = 0.5
_UNEVEN = 2.0
# others say of themselves what nobody measured
_CABLES = ("ethernet", "thunderbolt")


def check(found: Found) -> Iterator[Finding]:
    for way in found.ways:
        yield from _packets(way, found)
    for way in found.ways:
        yield from _speed(way, found)
    measured = slowest(found.ways)
    if measured:
        gbit, us = measured
        says = f"the slowest way carries {gbit:.3g} Gbit/s and takes {us:.0f} µs there and back"
        yield Finding("link", "ok", (), says, data={"gbit": gbit, "round_trip_us": us})


def _packets(way: WayFacts, found: Found) -> Iterator[Finding]:
    here, there = found.node(way.sender).chosen, found.node(way.receiver).chosen
    if here is None or there is None:
        return
    large = min(here.mtu, there.mtu)
    data: dict[str, Datum] = {"passed_bytes": way.mtu_bytes, "here_mtu": here.mtu, "there_mtu": there.mtu}
    cure = f"set one MTU on {here.name}, {there.name} and every switch between: `sudo ip link set {here.name} mtu …`"
    if way.stalled:
        says = "connections open, and stand still as soon as much is sent"
        if way.mtu_bytes and way.mtu_bytes < large:
            says += f": packets of more than {way.mtu_bytes} bytes vanish (MTU {here.mtu} here, {there.mtu} there)"
        elif here.mtu != there.mtu:
            says += f" (MTU {here.mtu} here, {there.mtu} there)"
        else:
            cure = "look at the cable, the switch and `ip -s link` for errors"
        yield Finding("mtu", "failure", way.pair, says, cure, data)
    elif way.mtu_bytes and way.mtu_bytes < min(large, 65535):
        told = f", as a router on the way says ({way.mtu_told})" if way.mtu_told else ", and nobody says so"
        says = f"packets of more than {way.mtu_bytes} bytes do not pass{told} (MTU {here.mtu} here, {there.mtu} there)"
        # TCP finds its way where it is told, or where the kernel tries smaller ones by itself
        yield Finding("mtu", "warning", way.pair, says, cure, data)
    elif here.mtu != there.mtu and way.sender < way.receiver:
        says = f"the MTU is {here.mtu} on one side and {there.mtu} on the other"
        yield Finding("mtu", "warning", way.pair, says, cure, data)
    elif way.mtu_bytes:
        yield Finding("mtu", "ok", way.pair, f"packets of {way.mtu_bytes} bytes pass", data=data)
    elif way.mtu_bytes == 0 and way.gbit:
        says = "UDP does not pass, so that the largest packet is not known"
        yield Finding("mtu", "warning", way.pair, says, "no harm to training; see the firewall", data)


def _speed(way: WayFacts, found: Found) -> Iterator[Finding]:
    if way.gbit is None or way.median_us is None or way.stalled:
        return
    data: dict[str, Datum] = {"gbit": way.gbit, "median_us": way.median_us, "least_us": way.least_us}
    says = f"{way.gbit:.3g} Gbit/s, {way.median_us:.0f} µs there and back"
    here, there = found.node(way.sender).chosen, found.node(way.receiver).chosen
    rates = [item.mbit for item in (here, there) if item and item.mbit and item.kind in _CABLES]
    nominal = min(rates) / 1000 if len(rates) == 2 else 0.0
    back = next((other for other in found.ways if other.pair == (way.receiver, way.sender)), None)
    if way.gbit < _SLOW_GBIT:
        cure = "use a cable of 2.5 Gbit/s or more; else accumulate gradients over many steps"
        yield Finding("speed", "warning", way.pair, f"{says}, which is slow for training", cure, data)
    elif nominal and way.gbit < _SHARE * nominal:
        cure = "look at the cable, the slot of the card, `ethtool` and `ip -s link`"
        says += f", of the {nominal:g} that the interfaces could"
        yield Finding("speed", "warning", way.pair, says, cure, data)
    elif back and back.gbit and back.gbit > _UNEVEN * way.gbit:
        says += f", but {back.gbit:.3g} Gbit/s the other way"
        yield Finding("speed", "warning", way.pair, says, "look at errors with `ip -s link` on both", data)
    else:
        yield Finding("speed", "ok", way.pair, says, data=data)
