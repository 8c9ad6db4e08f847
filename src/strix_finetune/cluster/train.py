"""`cluster train`: from a recipe and the nodes to a run folder, and to one sentence where it fails."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from strix_finetune import names, recipefacts
from strix_finetune.caches import CACHES
from strix_finetune.cluster import ending, job, parcels, results, sending, supervise
from strix_finetune.cluster.containers import Container
from strix_finetune.cluster.environment import environment
from strix_finetune.cluster.facts import Interface, NodeFacts
from strix_finetune.cluster.job import Job, Known, Station
from strix_finetune.cluster.logs import Logs
from strix_finetune.cluster.nodes import Cluster
from strix_finetune.cluster.reach import Reached
from strix_finetune.engine.base import Image
from strix_finetune.engine.drivers import PID_LABEL
from strix_finetune.errors import Problem, WorkError
from strix_finetune.launch import PASSED, SECRETS
from strix_finetune.paths import Folders


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line says. `settings`: of --set; `run`: the name of a run folder, empty for a new one."""

    recipe: str
    settings: tuple[str, ...] = ()
    resume: bool = False
    run: str = ""
    variables: Mapping[str, str] | None = None


T = TypeVar("T")
R = TypeVar("R")
# the environment of each node, by its name
Environments = Mapping[str, Mapping[str, str]]


def train(
    cluster: Cluster,
    wanted: Wanted,
    facts: recipefacts.RecipeFacts,
    reached: Sequence[Reached],
    environments: Environments,
    image: str,
    folders: Folders,
    env: Mapping[str, str],
) -> int:
    """Train on nodes that are reached; returns the exit code. Raises StrixError where it does not begin."""
    held = _images(reached, image)
    packed = parcels.gather(facts.reads, lambda path, size: _say(f"reading {path} ({size / 1e9:.1f} GB)"))
    made = _job(cluster, wanted, reached, facts, packed, held, env)
    known = _known(reached, environments, made)
    passed = {name: env[name] for name in PASSED if name in env and name not in ("TERM", "COLORTERM")}
    stations = job.stations(cluster, made, known, passed, wanted.variables or {})
    for station, one in zip(stations, known, strict=True):
        _say(_shown(station, one))
    _prepare(cluster, reached, stations, known, made)
    token = next((env[name].strip() for name in SECRETS if env.get(name, "").strip()), "")
    logs = Logs(folders.state / "cluster" / made.name, [each.node.name for each in reached], _write)
    try:
        ends, interrupted = _run(reached, stations, logs, token)
    finally:
        logs.close()
    return _report(reached[0], stations[0], logs, ends, interrupted)


def look_up(wanted: Wanted, folders: Folders, env: Mapping[str, str]) -> recipefacts.RecipeFacts:
    """What the recipe reads here, looked up by the rules of `train`."""
    arguments = [word for setting in wanted.settings for word in ("--set", setting)]
    return recipefacts.find(wanted.recipe, arguments, Path.cwd(), folders.recipes, _models(env))


def unchecked(cluster: Cluster, reached: Sequence[Reached]) -> Environments:
    """What each node gets without a check; the interface, where cluster.toml does not say it, is found there."""
    nodes = [
        NodeFacts(
            each.node.name,
            each.node.address,
            each.node.interface,
            interfaces=(Interface(each.node.interface),) if each.node.interface else (),
        )
        for each in reached
    ]
    peer = {"STRIX_PEER": reached[1].node.address} if len(reached) > 1 else {}
    return {
        node.name: {**environment(cluster, node, nodes), **({} if node.interface or index else peer)}
        for index, node in enumerate(nodes)
    }


def _models(env: Mapping[str, str]) -> Path:
    return next(cache for cache in CACHES if cache.name == "models").place(env)


def _images(reached: Sequence[Reached], image: str) -> Image:
    """The head's image. Raises WorkError for each node that has none or another one."""
    found = _at_once(reached, lambda each: each.engine.image(image))
    problems = []
    head = found[0]
    for each, held in zip(reached, found, strict=True):
        name = f"node {each.node.name}"
        if held is None:
            cure = "pull or build it there (`strix-finetune pull`)"
            problems.append(Problem(f"{name} has no image {image}", each.node.place, cure))
        elif head is not None and not _same(held, head):
            message = (
                f"{name} has another image {image} ({held.id[7:19]}) than {reached[0].node.name} ({head.id[7:19]})"
            )
            problems.append(Problem(message, each.node.place, "pull or build the same one on both"))
    if problems or head is None:
        raise WorkError(problems)
    return head


def _same(one: Image, other: Image) -> bool:
    """By id, by what a registry calls it, or by the key, since engines store the same layers under other ids."""
    key = one.labels.get(names.KEY)
    digests = bool(set(one.digests) & set(other.digests))
    return one.id == other.id or digests or bool(key and key == other.labels.get(names.KEY))


def _job(
    cluster: Cluster,
    wanted: Wanted,
    reached: Sequence[Reached],
    facts: recipefacts.RecipeFacts,
    packed: Sequence[parcels.Parcel],
    image: Image,
    env: Mapping[str, str],
) -> Job:
    stem = Path(facts.argument).stem
    unique = secrets.token_hex(4)
    name = wanted.run or f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    if wanted.resume and not wanted.run:
        head = reached[0]
        assert head.over
        name = results.unfinished(head, f"{job.workdir(cluster, head.over)}/{job.RUNS}", stem)
    words = [word for setting in wanted.settings for word in ("--set", setting)]
    models = _models(env)
    return Job(
        id=unique,
        name=name,
        image=image.tags[0] if image.tags else image.id,
        key=image.labels.get(names.KEY, ""),
        argument=facts.argument,
        words=(*words, *(["--resume"] if wanted.resume else [])),
        parcels=tuple(packed),
        model=next((each for each in packed if each.path.parent == models), None),
        token=any(env.get(secret, "").strip() for secret in SECRETS),
        gpu=image.labels.get(names.TARGET, "cpu") != "cpu",
    )


def _known(reached: Sequence[Reached], environments: Environments, made: Job) -> list[Known]:
    def one(each: Reached) -> Known:
        if each.over is None or not each.home:
            message = f"node {each.node.name}: files cannot be sent there, since only its engine is known"
            raise WorkError(Problem(message, each.node.place, "give it 'ssh'"))
        same = False
        if made.model and not each.node.local:
            same = sending.has_same(each, made.model, f"{job.models(each.over)}/{made.model.path.name}")
        count = job.processes(each.node, each.over, gpu=made.gpu)
        environment = environments.get(each.node.name, {})
        return Known(each.node, each.over, each.engine.info, count, environment, same)

    return _at_once(reached, one)


def _shown(station: Station, known: Known) -> str:
    """A line on a node: who it is, and what was chosen for it."""
    engine = f"{known.info.kind} {known.info.version}"
    ranks = f"rank {station.node.rank * known.processes}"
    if known.processes > 1:
        ranks = f"ranks {station.node.rank * known.processes}-{(station.node.rank + 1) * known.processes - 1}"
    chosen = " ".join(f"{name}={value}" for name, value in station.environment.items())
    return f"{station.node.name}: {ranks} at {station.node.address}, {engine}; {chosen}".rstrip("; ")


def _prepare(
    cluster: Cluster, reached: Sequence[Reached], stations: Sequence[Station], known: Sequence[Known], made: Job
) -> None:
    """Folders on each node, and what the recipe reads."""

    def one(index: int) -> None:
        each, station = reached[index], stations[index]
        each.engine.reap(PID_LABEL)
        each.run(["mkdir", "-p", *station.folders])
        if each.node.local:
            return
        wanted = [parcel for parcel in made.parcels if parcel is not made.model or not known[index].has_model]
        assert each.over
        for sent in sending.deliver(each, wanted, job.workdir(cluster, each.over)):
            _say(f"{each.node.name}: got {sent.path} ({_size(sent.size)})")

    _at_once(range(len(reached)), one)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count} bytes"


def _run(
    reached: Sequence[Reached], stations: Sequence[Station], logs: Logs, token: str
) -> tuple[list[ending.End], bool]:
    """Start all containers and wait for their ends; whatever happens, none is left."""
    events = supervise.Events()
    began = time.monotonic()

    def ended(index: int) -> Callable[[int | None, bool, str], None]:
        return lambda code, memory, why: events.put(supervise.Ended(index, code, memory, why, time.monotonic()))

    containers = [
        Container(each, station.request, token=token, on_output=logs.of[each.node.name].feed, on_end=ended(index))
        for index, (each, station) in enumerate(zip(reached, stations, strict=True))
    ]
    with ExitStack() as undo:
        # Ctrl-C is an event from here on, and keeps no container from being removed
        undo.enter_context(supervise.asked(events))
        undo.callback(supervise.each, containers, lambda each: each.remove(), 15.0)
        _at_once(containers, lambda each: each.create())
        _at_once(containers, lambda each: each.start())
        watch = supervise.Supervisor(containers, events, _say)
        ends = watch.wait()
    return [
        ending.End(
            node=reached[end.index].node,
            at=end.at - began,
            how="stopped" if end.stopped else "lost" if end.code is None else "ended",
            code=end.code,
            why=end.why,
            out_of_memory=end.out_of_memory,
            last=tuple(logs.of[reached[end.index].node.name].last),
        )
        for end in ends
    ], watch.interrupted


def _report(head: Reached, station: Station, logs: Logs, ends: Sequence[ending.End], interrupted: bool) -> int:
    """Bring the run folder here, say how it ended, and return the exit code."""
    code = ending.exit_code(ends, interrupted=interrupted)
    place = Path(station.run_folder)
    problem = None if interrupted else ending.cause(ends)
    if not head.node.local and ends[0].how != "lost":
        place = Path.cwd() / job.RUNS / Path(station.run_folder).name
        try:
            results.fetch(head, station.run_folder, place, lambda _: None)
            _say(f"the run folder of {head.node.name} is here: {place}; its checkpoints are there")
        except WorkError as error:
            if code == 0:
                raise
            _say(str(error))
    _say(f"what each node printed: {logs.folder}")
    if code == 0:
        _say(f"done on {len(ends)} nodes: {place}")
    elif problem is not None and code != ending.INTERRUPTED:
        print(f"error: {problem}", file=sys.stderr, flush=True)
    return code


def _at_once(items: Sequence[T], work: Callable[[T], R]) -> list[R]:
    """Do it with all at the same time; the results in their order. Raises WorkError with the faults of all."""
    pool = ThreadPoolExecutor(max_workers=max(1, len(items)), thread_name_prefix="cluster")
    try:
        futures = [pool.submit(work, item) for item in items]
        wait(futures)
    finally:
        # after Ctrl-C the threads end with the connections, which are closed next
        pool.shutdown(wait=False, cancel_futures=True)
    faults = [error for future in futures if (error := future.exception())]
    for error in faults:
        if not isinstance(error, WorkError):
            raise error
    if faults:
        raise WorkError([problem for error in faults if isinstance(error, WorkError) for problem in error.problems])
    return [future.result() for future in futures]


def _say(text: str) -> None:
    print(f"cluster: {text}", file=sys.stderr, flush=True)


def _write(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()
