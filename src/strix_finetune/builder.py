"""Build what was asked for: lock → render → plan → execute, and what is written down on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from strix_finetune import budget, graph, knownbad, names, netconf, tested
from strix_finetune import lock as locks
from strix_finetune.engine.base import Engine
from strix_finetune.errors import InputError, LockError
from strix_finetune.events import Emit, Event, LayerPlanned, Notice, SmokeResult
from strix_finetune.execute import Built, Outcome, Pulled, Reused, Work, execute
from strix_finetune.lockmodel import Lock
from strix_finetune.logs import LayerLogs
from strix_finetune.model import Keyed
from strix_finetune.plan import Build, NotNeeded, Plan, Pull, Reuse, Step, make_plan
from strix_finetune.requests import Requests, log_folder
from strix_finetune.ui import View
from strix_finetune.workspace import Workspace

if TYPE_CHECKING:
    from strix_finetune.crew import Check
    from strix_finetune.registry.reuse import Source
    from strix_finetune.vendor.offline import Vendored


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How to build. `locked`: refuse instead of relocking; `rebuild`: the named layers, though they are up to date;
    `source`: a registry whose layers are taken instead of built."""

    layers: tuple[str, ...] = ()
    jobs: int = 2
    locked: bool = False
    rebuild: bool = False
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and the lock that it was made from; `vendored`: where a build without a network takes its inputs from."""

    plan: Plan
    lock: Lock
    settings: netconf.NetSettings
    vendored: Vendored | None = None


class Reporter:
    """Hands each event to the view and to the layer logs, one at a time whatever thread it comes from."""

    def __init__(self, view: View, logs: LayerLogs | None = None) -> None:
        self._view = view
        self._logs = logs
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._lock:
            if self._logs:
                self._logs.write(event)
            self._view.show(event)


def make_build_plan(
    workspace: Workspace,
    engine: Engine,
    options: BuildOptions,
    emit: Emit,
    env: Mapping[str, str],
    flags: netconf.Flags,
) -> Planned:
    """Plan a build. The archive is only asked when a layer that uses it must be built.

    Entries that the lock lacks, or that the archive no longer serves, are locked anew and said so; with
    `options.locked` that is a LockError instead.
    """
    lock = workspace.read_lock()
    pinned = lock.images if lock else {}
    settings = netconf.collect(env, flags)
    settings = _lend(settings, workspace, pinned, engine, emit, locked=options.locked)
    gaps = locks.missing(workspace.stack, lock)
    if lock is None or gaps:
        if options.locked:
            what = "there is no lock" if lock is None else f"the lock lacks {', '.join(str(gap) for gap in gaps[:3])}"
            raise LockError(
                f"{what} for {workspace.stack.target.id} on {workspace.stack.channel.name}",
                cure="run 'strix-finetune lock' once without --locked",
            )
        lock = _relock(workspace, lock, settings, emit)
    locks.check_versions(workspace.stack, lock)
    for hit in knownbad.check(workspace.stack.known_bad, lock):
        emit(Notice(f"accepted although it is known to be bad: {hit}"))
    plan = _plan(workspace, workspace.render(lock), engine, options)
    if any(_asks_the_archive(step.layer) for step in plan.builds):
        stale = locks.stale(workspace.stack, lock, settings, workspace.folders.cache)
        if stale and options.locked:
            raise LockError(
                f"the archive no longer serves {', '.join(str(item) for item in stale[:3])}",
                cure="build without --locked to lock these entries anew",
            )
        if stale:
            lock = _relock(workspace, lock, settings, emit)
            plan = _plan(workspace, workspace.render(lock), engine, options)
    return Planned(plan, _with_borrowed(workspace, lock, settings, emit), settings)


def make_vendored_plan(
    workspace: Workspace,
    engine: Engine,
    options: BuildOptions,
    folder: Path,
    emit: Emit = lambda event: None,
) -> Planned:
    """Plan a build from a vendored folder: nothing is asked but the engine.

    Raises LockError where the lock lacks something or the folder is another lock's, InputError where the folder lacks
    something that a layer needs which is to be built.
    """
    from strix_finetune.vendor.offline import open_folder
    from strix_finetune.vendor.plan import read_lock

    lock = read_lock(workspace)
    layers = workspace.render(lock)
    vendored = open_folder(folder, workspace.stack, lock, layers)
    plan = _plan(workspace, layers, engine, options)
    if problems := vendored.faults([step.layer for step in plan.builds]):
        raise InputError(problems)
    settings = _lend(vendored.settings(), workspace, lock.images, engine, emit, locked=True)
    return Planned(plan, lock, settings, vendored)


def make_offline_plan(workspace: Workspace, engine: Engine) -> tuple[Plan, Lock]:
    """The plan by the lock as it is: nothing is resolved, nothing but the engine is asked."""
    lock = workspace.need_lock()
    return _plan(workspace, workspace.render(lock), engine, BuildOptions()), lock


def run_build(
    planned: Planned, workspace: Workspace, engine: Engine, options: BuildOptions, emit: Emit
) -> Mapping[str, Outcome]:
    """Carry out a plan; results of smoke tests are recorded in the user's state folder."""
    announce(planned.plan, emit)
    requests = Requests(workspace, planned.lock, planned.settings, engine, planned.vendored, twins=True)
    folder = log_folder(workspace)
    work = Work(
        requests.build,
        requests.smoke,
        lambda step: str(folder / f"{step.name}.log"),
        lambda step, image: budget.check(engine, workspace.stack, step.layer, image),
        _puller(options.source, workspace, engine) if options.source else None,
    )
    outcomes = execute(planned.plan, engine, work, emit, jobs=options.jobs)
    for step in planned.plan.steps:
        outcome = outcomes.get(step.name)
        if isinstance(outcome, Built) or (isinstance(outcome, Reused | Pulled) and outcome.smoke):
            record_smoke(workspace, step, outcome.image, outcome.smoke)
    _with_borrowed(workspace, planned.lock, planned.settings, emit)
    return outcomes


def announce(plan: Plan, emit: Emit) -> None:
    for step in plan.steps:
        if isinstance(step.action, NotNeeded):
            kind = "not-needed"
        else:
            kind = {Build: "build", Pull: "pull", Reuse: "reuse"}[type(step.action)]
        retest = isinstance(step.action, Reuse) and step.action.retest
        emit(LayerPlanned(step.name, kind, step.action.reason, step.layer.key, step.tags, retest))  # type: ignore[arg-type]


def _puller(
    source: Source, workspace: Workspace, engine: Engine
) -> Callable[[Step, Emit, Check], AbstractContextManager[tuple[str, bool]]]:
    @contextmanager
    def pull(step: Step, emit: Emit, check: Check) -> Iterator[tuple[str, bool]]:
        with source.take(step.layer, engine, emit, check) as taken:
            now = tested.digests(workspace.stack, step.name)
            yield taken.image, any(taken.config.tests.get(name) != digest for name, digest in now.items())

    return pull


def record_smoke(workspace: Workspace, step: Step, image: str, results: tuple[SmokeResult, ...]) -> None:
    """Keep what the tests of an image said."""
    tested.record(workspace.folders.state, workspace.stack, step.layer, image, results)


def _plan(workspace: Workspace, layers: tuple[Keyed, ...], engine: Engine, options: BuildOptions) -> Plan:
    stack = workspace.stack
    wanted, images = graph.wanted(stack, options.layers), engine.images(names.KEY)
    tests = {node.name: tested.digests(stack, node.name) for node in stack.nodes}
    passed = tested.known(workspace.folders.state, stack, layers, images)
    offers = options.source.offers if options.source else None
    return make_plan(stack, layers, wanted, images, rebuild=options.rebuild, tests=tests, passed=passed, offers=offers)


def _lend(
    settings: netconf.NetSettings,
    workspace: Workspace,
    pinned: Mapping[str, str],
    engine: Engine,
    emit: Emit,
    *,
    locked: bool,
) -> netconf.NetSettings:
    """With Debian's programs, whoever can run them."""
    from strix_finetune.borrowed import lend

    return lend(settings, workspace.stack, pinned, lambda: engine, lambda text: emit(Notice(text)), locked=locked)


def _with_borrowed(workspace: Workspace, lock: Lock, settings: netconf.NetSettings, emit: Emit) -> Lock:
    """The lock with the image that programs were borrowed from, written down when that was looked up now."""
    from strix_finetune.borrowed import looked_up

    new = {name: digest for name, digest in looked_up(settings).items() if lock.images.get(name) != digest}
    if not new:
        return lock
    lock = replace(lock, images={**lock.images, **new})
    workspace.save_lock(lock)
    for name, digest in new.items():
        emit(Notice(f"locked the image {name}: {digest}"))
    return lock


def _asks_the_archive(layer: Keyed) -> bool:
    return any(name.startswith("apt ") for name in layer.layer.inputs)


def _relock(workspace: Workspace, lock: Lock | None, settings: netconf.NetSettings, emit: Emit) -> Lock:
    stack = workspace.stack
    emit(Notice(f"locking the inputs of {stack.channel.name} for {stack.target.id}"))
    fresh, changes = locks.make_lock(
        stack, lock, settings, workspace.folders.cache, say=lambda text: emit(Notice(text))
    )
    workspace.save_lock(fresh)
    for change in changes:
        emit(Notice(f"  {change}"))
    return fresh
