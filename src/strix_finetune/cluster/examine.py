"""Look at a cluster: reach the nodes, let their agents tell and try, and judge what they found.

The network, the engines and the clock are here; what is judged is made of values, in `checks`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from strix_finetune import names
from strix_finetune.cluster import ways as ways_module
from strix_finetune.cluster.agents import Agent, AgentLost, AgentRefused, agents, clock_offset
from strix_finetune.cluster.checks import clock, collectives, images, interfaces, kernel, links, ports, rdma, room
from strix_finetune.cluster.environment import environment
from strix_finetune.cluster.facts import Found, NodeFacts, Reduction, WayFacts, told
from strix_finetune.cluster.findings import Datum, Finding, Level
from strix_finetune.cluster.nodes import Cluster
from strix_finetune.cluster.reach import Reached, Unreached, try_nodes
from strix_finetune.errors import StrixError, WorkError

# the judges, in the order in which their findings are shown
_BEFORE = (images.check, clock.check, interfaces.check, rdma.check, kernel.check, room.check)
_WAYS = (ports.check, links.check)
# what an all_reduce could only show again, after a minute
_STOPS = ("engine", "agent", "image", "interface", "route", "ports", "mtu", "gpus")
_FACTS_SECONDS = 8.0
# of the whole check, as far as it depends on us; the all_reduce gets what is left, and some seconds at least
_BUDGET_SECONDS = 28.0
_REDUCE_SECONDS = (8.0, 20.0)
_REDUCE_BYTES = 4 << 20
_DISK = 'd=$1; while [ ! -e "$d" ]; do d=$(dirname "$d"); done; df -Pk "$d" | tail -n 1'

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Examined:
    """What was found, and what it means. `environments`: node → the variables of training, of nodes that told facts."""

    cluster: Cluster
    image: str
    findings: tuple[Finding, ...]
    environments: Mapping[str, Mapping[str, str]]
    found: Found | None
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether training would fail."""
        return self.count("failure") > 0

    def count(self, level: Level) -> int:
        return sum(finding.level == level for finding in self.findings)


def examine(cluster: Cluster, image: str, env: Mapping[str, str], tell: Tell = lambda text: None) -> Examined:
    """Reach the nodes, and look at them; connections and containers are gone afterwards."""
    begin = time.monotonic()
    tell(f"reaching {', '.join(node.name for node in cluster.nodes)}")
    with try_nodes(cluster, env) as reached:
        return look(cluster, image, reached, tell, begin)


def look(
    cluster: Cluster,
    image: str,
    reached: Sequence[Reached | Unreached],
    tell: Tell,
    begin: float | None = None,
    *,
    quick: bool = False,
) -> Examined:
    """The same for nodes that are reached already, or could not be. `quick`: without an all_reduce."""
    begin = time.monotonic() if begin is None else begin
    findings = [finding for item in reached for finding in _engine(item)]
    there = [item for item in reached if isinstance(item, Reached)]
    bases, refusals = _images(there, image)
    findings += refusals
    with_image = [(item, image) for item in there if item.node.name in bases and bases[item.node.name].image_id]
    tell(f"starting {len(with_image)} agents")
    with agents(with_image, rdma=_may_be_rdma(cluster, there)) as started:
        running = [agent for agent in started if isinstance(agent, Agent)]
        for (item, _), agent in zip(with_image, started, strict=True):
            if not isinstance(agent, Agent):
                findings.append(Finding("agent", "failure", (item.node.name,), *_words(agent, item.node.name)))
        tell("asking for facts")
        for name, answer in _each(running, lambda agent: _facts(agent, bases[agent.name], cluster)):
            if isinstance(answer, StrixError):
                findings.append(Finding("agent", "failure", (name,), *_words(answer, name)))
            else:
                bases[name] = answer
        found = Found(cluster, tuple(bases.values()))
        findings += [finding for check in _BEFORE for finding in check(found)] if bases else []
        if len(running) > 1:
            found, late = _try_ways(found, running, tell, quick=quick)
            findings += [*(finding for check in _WAYS for finding in check(found)), *late]
            if not quick:
                found = _reduce(found, running, findings, late, tell, begin)
                findings += collectives.check(found)
    environments = {
        node.name: environment(cluster, node, found.nodes, found.ways) for node in found.nodes if node.interfaces
    }
    seconds = time.monotonic() - begin
    return Examined(cluster, image, tuple(findings), environments, found if bases else None, seconds)


def _engine(item: Reached | Unreached) -> list[Finding]:
    where = (item.node.name,)
    if isinstance(item, Unreached):
        return [Finding("engine", "failure", where, *_words(item.error, item.node.name))]
    info = item.engine.info
    mode = ", rootless" if info.rootless else ""
    says = f"{info.kind} {info.version}{mode} answers, peers use {item.node.address}"
    data: dict[str, Datum] = {"engine": info.kind, "version": info.version, "rootless": info.rootless}
    return [Finding("engine", "ok", where, says, data=data)]


def _words(error: StrixError, node: str) -> tuple[str, str]:
    """The sentence and the cure of an error, without the name that the table has anyway."""
    problem = error.problems[0]
    return problem.message.removeprefix(f"node {node}: "), problem.cure


def _images(there: Sequence[Reached], image: str) -> tuple[dict[str, NodeFacts], list[Finding]]:
    """What is known of each node without an agent; nodes whose engine failed meanwhile are told apart."""

    def one(item: Reached) -> NodeFacts | StrixError:
        base = NodeFacts(item.node.name, item.node.address, item.node.interface, item.engine.info.kind, image, taken={})
        try:
            known = item.engine.image(image)
        except StrixError as error:
            return error
        if known is None:
            return base
        return replace(
            base,
            image_id=known.id,
            image_digests=known.digests,
            image_key=known.labels.get(names.KEY, ""),
            image_target=known.labels.get(names.TARGET, ""),
        )

    with ThreadPoolExecutor(max_workers=max(1, len(there))) as pool:
        answers = list(pool.map(one, there))
    found, refusals = {}, []
    for item, answer in zip(there, answers, strict=True):
        name = item.node.name
        if isinstance(answer, StrixError):
            refusals.append(Finding("engine", "failure", (name,), *_words(answer, name)))
        else:
            found[name] = answer
    return found, refusals


def _may_be_rdma(cluster: Cluster, there: Sequence[Reached]) -> bool:
    """Whether agents need the adapters: where they are everywhere, or were asked for."""
    have = [any("/infiniband/" in device.path for device in item.over.devices) for item in there if item.over]
    return cluster.link == "rdma" or (cluster.link == "auto" and bool(have) and all(have))


def _facts(agent: Agent, base: NodeFacts, cluster: Cluster) -> NodeFacts:
    peers = [node.address for node in cluster.nodes if node.address and node.address != base.address]
    asked = agent.ask("facts", _FACTS_SECONDS)
    offset, exact = clock_offset(agent)
    sources = agent.get("routes", 3, peers=peers)
    said = agent.wait(asked, "facts", _FACTS_SECONDS)
    return replace(
        base,
        **told(base, said),
        clock_seconds=offset,
        clock_exact=exact,
        sources=sources,
        disk_free_bytes=_disk(agent.reached, cluster.workdir),
    )


def _disk(item: Reached, workdir: str) -> int | None:
    """Bytes that are free where runs are written, None where nobody can say."""
    if not item.home:
        return None
    folder = workdir if workdir.startswith("/") else f"{item.home}/{workdir}"
    try:
        words = item.run(["sh", "-c", _DISK, "sh", folder], seconds=5).split()
        return int(words[3]) * 1024
    except (WorkError, ValueError, IndexError):
        return None


def _each(running: Sequence[Agent], work: Callable[[Agent], Any]) -> list[tuple[str, Any]]:
    """The work of all agents at the same time; errors are answers."""

    def one(agent: Agent) -> Any:
        try:
            return work(agent)
        except StrixError as error:
            return error

    with ThreadPoolExecutor(max_workers=max(1, len(running))) as pool:
        return list(zip((agent.name for agent in running), pool.map(one, running), strict=True))


def _try_ways(found: Found, running: Sequence[Agent], tell: Tell, *, quick: bool) -> tuple[Found, list[Finding]]:
    """Have every node listen and every other one connect, then measure; torch is loaded meanwhile.

    Beside what was found: who still listens at the end, on ports that training binds.
    """
    nodes = {node.name: node for node in found.nodes}
    for backend in () if quick else _backends(found):
        for agent in running:
            variables = environment(found.cluster, nodes[agent.name], found.nodes)
            agent.ask("prepare", 5, backend=backend, env=variables)
    secret = ways_module.token()
    tell(f"trying {len(found.cluster.ports)} ports each way")
    served = ways_module.serve(running, nodes, found.cluster, secret)
    facts = [replace(node, taken=served[node.name].taken) if node.name in served else node for node in found.nodes]
    tried = ways_module.try_ports(running, nodes, served, secret)
    tell("measuring the ways")
    measured: list[WayFacts] = ways_module.measure(running, nodes, tried, secret)
    says = "what listened for the other nodes is not closed after 5 s: the machine is too busy"
    late = [
        Finding("ports", "warning", (name,), says, "check again when it has time")
        for name, closed in _each(running, lambda agent: agent.get("unserve", 5))
        if closed is False
    ]
    return replace(found, nodes=tuple(facts), ways=tuple(measured)), late


def _backends(found: Found) -> list[str]:
    """gloo always, and RCCL where all nodes have GPUs."""
    return ["gloo", "nccl"] if all(node.gpus for node in found.nodes) else ["gloo"]


def _reduce(
    found: Found, running: Sequence[Agent], findings: list[Finding], late: list[Finding], tell: Tell, begin: float
) -> Found:
    """An all_reduce over all nodes, unless it is known that it would fail."""
    known = [item for item in findings if item.level == "failure" and item.check in _STOPS] or late
    if known:
        says = f"not tried, since {known[0].check} failed on {known[0].where}"
        findings.append(Finding("allreduce", "warning", (), says, "cure the failures, and check again"))
        return found
    done: list[Reduction] = []
    for backend in _backends(found):
        tell(f"summing over all nodes ({backend})")
        left = _BUDGET_SECONDS - (time.monotonic() - begin)
        seconds = min(max(left, _REDUCE_SECONDS[0]), _REDUCE_SECONDS[1])
        asked = [
            agent.ask(
                "allreduce",
                seconds,
                backend=backend,
                rank=rank,
                world=len(running),
                address=found.head.address,
                port=found.cluster.ports.first,
                size=_REDUCE_BYTES,
            )
            for rank, agent in enumerate(running)
        ]
        for agent, future in zip(running, asked, strict=True):
            try:
                said = agent.wait(future, "allreduce", seconds)
            except (AgentLost, AgentRefused) as error:
                said = {"ok": False, "stage": "import", "said": error.problems[0].message, "late": True}
            done.append(
                Reduction(
                    agent.name,
                    backend,
                    ok=said["ok"],
                    stage=said["stage"],
                    said=said.get("said", ""),
                    late=said.get("late", False),
                    seconds=said.get("seconds", 0.0),
                    gbit=said.get("gbit", 0.0),
                )
            )
    return replace(found, reductions=tuple(done))
