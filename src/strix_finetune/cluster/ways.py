"""Try the ways between all nodes by their agents: ports, the largest packet, round trip and bandwidth."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from strix_finetune.cluster.agents import Agent, AgentLost, AgentRefused
from strix_finetune.cluster.facts import NodeFacts, WayFacts
from strix_finetune.cluster.nodes import Cluster, Ports

# as many as a firewall's rules could tell apart in a range; all of it when it is no larger
_MOST_PORTS = 256
_SOME = 16
_CONNECT_SECONDS = 5.0
_MTU_SECONDS = 5.0
# of sending on each way; ways that share no node are measured at the same time
_SEND_SECONDS, _SEND_IN_ALL = 0.5, 6.0
_SERVE_SECONDS = 60.0
# until a connection that takes nothing counts as standing still, and for all measurements together
_PATIENCE_SECONDS, _MEASURE_SECONDS = 2.0, 12.0


@dataclass(frozen=True)
class Served:
    """What an agent listens on."""

    ports: tuple[int, ...]
    some: tuple[int, ...]
    udp: int
    taken: Mapping[int, str]


def serve(agents: Sequence[Agent], nodes: Mapping[str, NodeFacts], cluster: Cluster, token: str) -> dict[str, Served]:
    """Have all agents listen. Names of those that could not are not in the answer."""
    asked = {
        agent.name: (
            agent,
            agent.ask(
                "serve",
                _SERVE_SECONDS,
                token=token,
                address=nodes[agent.name].address,
                ports=sample(cluster.ports),
                some=_SOME,
                # torchrun's store is bound on all addresses of the head
                exclusive=[cluster.ports.first] if agent.name == cluster.head.name else [],
            ),
        )
        for agent in agents
    }
    found = {}
    for name, (agent, future) in asked.items():
        said = _value(agent, future, "serve", 5)
        if said is not None:
            taken = {int(port): str(why) for port, why in said["taken"].items()}
            found[name] = Served(tuple(said["ports"]), tuple(said["some"]), said["udp"], taken)
    return found


def sample(ports: Ports) -> list[int]:
    """All ports of the range, or some that are spread over it, its ends among them."""
    every = list(ports)
    if len(every) <= _MOST_PORTS:
        return every
    step = (len(every) - 1) / (_MOST_PORTS - 1)
    return sorted({every[round(number * step)] for number in range(_MOST_PORTS)})


def token() -> str:
    """What the probes of one check know each other by; it travels by the agents' input alone."""
    return secrets.token_hex(16)


def try_ports(
    agents: Sequence[Agent], nodes: Mapping[str, NodeFacts], served: Mapping[str, Served], secret: str
) -> list[WayFacts]:
    """Connect on every way to everything that is listened on, and find the largest packet; all at the same time."""
    asked = []
    for here, there in _ways(agents):
        if there.name not in served:
            continue
        target, interface, other = served[there.name], nodes[here.name].chosen, nodes[there.name].chosen
        words: dict[str, Any] = {"token": secret, "address": nodes[there.name].address}
        ports = [*target.ports, *target.some]
        connect = here.ask("connect", _CONNECT_SECONDS, ports=ports, **words)
        large = None
        if target.udp and interface:
            sizes = [other.mtu] if other else []
            large = here.ask("mtu", _MTU_SECONDS, port=target.udp, mtu=interface.mtu, sizes=sizes, **words)
        asked.append((here, there, target, connect, large))
    found = []
    for here, there, target, connect, large in asked:
        states = _value(here, connect, "connect", _CONNECT_SECONDS) or {}
        packet = _value(here, large, "mtu", _MTU_SECONDS) if large else None
        found.append(
            WayFacts(
                here.name,
                there.name,
                ports={port: states.get(str(port), "dropped") for port in target.ports},
                some={port: states.get(str(port), "dropped") for port in target.some},
                mtu_bytes=packet["bytes"] if packet else None,
                mtu_told=packet["told"] if packet else 0,
            )
        )
    return found


def measure(
    agents: Sequence[Agent], nodes: Mapping[str, NodeFacts], ways: Sequence[WayFacts], secret: str
) -> list[WayFacts]:
    """Round trip and bandwidth of each way that has an open port. No node is in two ways at a time.

    Where much stands still the time may be over before all are measured: what is known is enough then.
    """
    until = time.monotonic() + _MEASURE_SECONDS
    by_name = {agent.name: agent for agent in agents}
    measured = {way.pair: way for way in ways}
    rounds = list(tournament([way for way in ways if _open(way)]))
    seconds = min(_SEND_SECONDS, _SEND_IN_ALL / max(1, len(rounds)))
    for each in rounds:
        if time.monotonic() > until:
            break
        asked = []
        for way in each:
            words = {"token": secret, "address": nodes[way.receiver].address, "port": _open(way)}
            agent = by_name[way.sender]
            asked.append((way, agent, agent.ask("latency", 2, **words), words))
        sending = []
        for way, agent, future, words in asked:
            quick = _value(agent, future, "latency", 2)
            if quick:
                found = replace(measured[way.pair], median_us=quick["median_us"], least_us=quick["least_us"])
                measured[way.pair] = found
            sending.append((way, agent, agent.ask("bandwidth", seconds, patience=_PATIENCE_SECONDS, **words)))
        for way, agent, future in sending:
            much = _value(agent, future, "bandwidth", seconds + 3 * _PATIENCE_SECONDS)
            if much:
                found = replace(measured[way.pair], gbit=much["gbit"], stalled=much["stalled"])
                measured[way.pair] = found
    return list(measured.values())


def tournament(ways: Sequence[WayFacts]) -> Iterator[list[WayFacts]]:
    """Rounds in which every node is in one way at most."""
    left = list(ways)
    while left:
        busy: set[str] = set()
        taken = []
        for way in left:
            if not busy & set(way.pair):
                busy |= set(way.pair)
                taken.append(way)
        left = [way for way in left if way not in taken]
        yield taken


def _open(way: WayFacts) -> int:
    """An open port over there, 0 where there is none."""
    return next((port for port, state in {**way.some, **way.ports}.items() if state == "open"), 0)


def _ways(agents: Sequence[Agent]) -> Iterator[tuple[Agent, Agent]]:
    for here in agents:
        for there in agents:
            if here is not there:
                yield here, there


def _value(agent: Agent, future: Future[Any], do: str, seconds: float) -> Any:
    """The answer, None when there is none: what it would have told is then missing, which the checks see."""
    try:
        return agent.wait(future, do, seconds)
    except (AgentLost, AgentRefused):
        return None
