"""What is done on the nodes before a training starts there: images compared, the recipe sent, folders made."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from strix_finetune import names, recipefacts
from strix_finetune.caches import CACHES
from strix_finetune.cluster import job, parcels, results, sending
from strix_finetune.cluster.environment import environment
from strix_finetune.cluster.facts import Interface, NodeFacts
from strix_finetune.cluster.job import Job, Known, Station
from strix_finetune.cluster.nodes import Cluster
from strix_finetune.cluster.reach import Reached
from strix_finetune.engine.base import Image
from strix_finetune.engine.drivers import PID_LABEL
from strix_finetune.errors import InputError, Problem, WorkError
from strix_finetune.launch import SECRETS
from strix_finetune.paths import Folders

T = TypeVar("T")
R = TypeVar("R")
# the environment of each node, by its name
Environments = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line says. `settings`: of --set; `run`: the name of a run folder, empty for a new one."""

    recipe: str
    settings: tuple[str, ...] = ()
    resume: bool = False
    run: str = ""
    variables: Mapping[str, str] | None = None


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


def images(reached: Sequence[Reached], image: str) -> Image:
    """The head's image. Raises WorkError for each node that has none or another one."""
    found = at_once(reached, lambda each: each.engine.image(image))
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


def plan(
    cluster: Cluster,
    wanted: Wanted,
    head: Reached,
    facts: recipefacts.RecipeFacts,
    packed: Sequence[parcels.Parcel],
    ref: str,
    image: Image,
    env: Mapping[str, str],
) -> Job:
    if wanted.run and not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,100}", wanted.run):
        raise InputError(Problem(f"'{wanted.run}' is no name of a run", cure="use letters, digits, '.', '_' and '-'"))
    stem = Path(facts.argument).stem
    name = wanted.run or f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    if wanted.resume and not wanted.run:
        assert head.over
        name = results.unfinished(head, f"{job.workdir(cluster, head.over)}/{job.RUNS}", stem)
    words = [word for setting in wanted.settings for word in ("--set", setting)]
    models = _models(env)
    return Job(
        name=name,
        image=ref,
        key=image.labels.get(names.KEY, ""),
        argument=facts.argument,
        words=(*words, *(["--resume"] if wanted.resume else [])),
        parcels=tuple(packed),
        model=next((each for each in packed if each.path.parent == models), None),
        token=any(env.get(secret, "").strip() for secret in SECRETS),
        gpu=image.labels.get(names.TARGET, "cpu") != "cpu",
    )


def known_of(
    reached: Sequence[Reached], environments: Environments, made: Job, gpus: Mapping[str, int] | None = None
) -> list[Known]:
    """What is known of the nodes, which the machines are asked for. `gpus`: how many the check saw, by node."""

    def one(each: Reached) -> Known:
        if each.over is None or not each.home:
            message = f"node {each.node.name}: files cannot be sent there, since only its engine is known"
            raise WorkError(Problem(message, each.node.place, "give it 'ssh'"))
        same = False
        if made.model and not each.node.local:
            same = sending.has_same(each, made.model, f"{job.models(each.over)}/{made.model.path.name}")
        count = job.processes(each.node, each.over, gpu=made.gpu, gpus=(gpus or {}).get(each.node.name))
        environment = environments.get(each.node.name, {})
        return Known(each.node, each.over, each.engine.info, count, environment, same)

    return at_once(reached, one)


def shown(stations: Sequence[Station], known: Sequence[Known]) -> list[str]:
    """Lines on the nodes: who they are, and the variables that were chosen, those that are the same for all once."""
    first = stations[0].environment
    common = {key for key, value in first.items() if all(each.environment.get(key) == value for each in stations)}
    lines = ["all get " + " ".join(f"{key}={first[key]}" for key in first if key in common)] if common else []
    for station, one in zip(stations, known, strict=True):
        begin = station.node.rank * one.processes
        ranks = f"rank {begin}" if one.processes == 1 else f"ranks {begin}-{begin + one.processes - 1}"
        own = " ".join(f"{key}={value}" for key, value in station.environment.items() if key not in common)
        engine = f"{one.info.kind} {one.info.version}"
        lines.append(f"{station.node.name}: {ranks} at {station.node.address}, {engine}{', ' if own else ''}{own}")
    return lines


def ready(
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
            say(f"{each.node.name}: got {sent.path} ({_size(sent.size)})")

    at_once(range(len(reached)), one)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count} bytes"


def at_once(items: Sequence[T], work: Callable[[T], R]) -> list[R]:
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


def say(text: str) -> None:
    print(f"cluster: {text}", file=sys.stderr, flush=True)
