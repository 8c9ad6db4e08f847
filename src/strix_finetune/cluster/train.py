"""`cluster train`: from a recipe and the nodes to a run folder, and to one sentence where it fails."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from strix_finetune.cluster import ending, job, parcels, prepare, results, supervise
from strix_finetune.cluster.containers import Container
from strix_finetune.cluster.job import Station
from strix_finetune.cluster.logs import Logs
from strix_finetune.cluster.nodes import Cluster
from strix_finetune.cluster.prepare import Environments, Wanted
from strix_finetune.cluster.reach import Reached
from strix_finetune.errors import WorkError
from strix_finetune.launch import PASSED, SECRETS
from strix_finetune.paths import Folders
from strix_finetune.recipefacts import RecipeFacts


def train(
    cluster: Cluster,
    wanted: Wanted,
    facts: RecipeFacts,
    reached: Sequence[Reached],
    environments: Environments,
    image: str,
    folders: Folders,
    env: Mapping[str, str],
    gpus: Mapping[str, int] | None = None,
) -> int:
    """Train on nodes that are reached; returns the exit code. Raises StrixError where it does not begin.

    `gpus`: how many the check saw, by node; None without one.
    """
    held = prepare.images(reached, image)
    packed = parcels.gather(facts.reads, lambda path, size: prepare.say(f"reading {path} ({size / 1e9:.1f} GB)"))
    made = prepare.plan(cluster, wanted, reached[0], facts, packed, image, held, env)
    known = prepare.known_of(reached, environments, made, gpus)
    passed = {name: env[name] for name in PASSED if name in env and name not in ("TERM", "COLORTERM")}
    stations = job.stations(cluster, made, known, passed, wanted.variables or {})
    for line in prepare.shown(stations, known):
        prepare.say(line)
    prepare.ready(cluster, reached, stations, known, made)
    token = next((env[name].strip() for name in SECRETS if env.get(name, "").strip()), "")
    logs = Logs(folders.state / "cluster" / made.name, [each.node.name for each in reached], _write)
    try:
        ends, interrupted = _run(reached, stations, logs, token)
    finally:
        logs.close()
    return _report(reached[0], stations[0], logs, ends, interrupted)


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
        prepare.at_once(containers, lambda each: each.create())
        if not events.empty():
            # nothing has begun, and a process that is just being born would not hear it
            raise KeyboardInterrupt
        prepare.at_once(containers, lambda each: each.start())
        watch = supervise.Supervisor(containers, events, prepare.say)
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
            copied = results.fetch(head, station.run_folder, place)
            if copied and copied != place:
                prepare.say(f"{place} is something else, or was changed since it was copied: it stays as it is")
            if copied:
                place = copied
                prepare.say(f"the run folder of {head.node.name} is here: {place}; its checkpoints are there")
        except WorkError as error:
            if code == 0:
                raise
            prepare.say(str(error))
    prepare.say(f"what each node printed: {logs.folder}")
    if code == ending.INTERRUPTED:
        prepare.say(f"go on with the same command and --resume --run {Path(station.run_folder).name}")
    elif code == 0:
        prepare.say(f"done on {len(ends)} nodes: {place}")
    elif problem is not None:
        print(f"error: {problem}", file=sys.stderr, flush=True)
    return code


def _write(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()
