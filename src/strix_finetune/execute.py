"""Carry out a plan: build what must be built, as many layers at once as allowed, smoke-test, then move the tags.

A failed layer stops its children only. Events go out, nothing is printed here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from strix_finetune.engine.base import BuildEvent, BuildRequest, Engine, StepDone, StepLog, StepStarted
from strix_finetune.errors import BuildFailed, Problem, SmokeFailed, StrixError
from strix_finetune.events import Emit, Finished, LayerDone, LayerStarted, SmokeResult, StepOutput, StepProgress
from strix_finetune.plan import Build, NotNeeded, Plan, Reuse, Step
from strix_finetune.tags import move_tags


@dataclass(frozen=True, slots=True)
class Built:
    image: str
    seconds: float
    smoke: tuple[SmokeResult, ...]


@dataclass(frozen=True, slots=True)
class Reused:
    image: str


@dataclass(frozen=True, slots=True)
class Failed:
    error: StrixError
    seconds: float


@dataclass(frozen=True, slots=True)
class Blocked:
    """Not tried: `by` is the layer that it needs and that failed."""

    by: str


Outcome = Built | Reused | Failed | Blocked


@dataclass(frozen=True, slots=True)
class Work:
    """What the executor needs to know about one layer beyond its plan: how to ask for the build and how to test it.

    `request` may fetch and bootstrap (it is called when the layer's turn comes); `log_path` is shown to the user.
    """

    request: Callable[[Step], BuildRequest]
    smoke: Callable[[Step, str, Emit], tuple[SmokeResult, ...]]
    log_path: Callable[[Step], str]


def execute(plan: Plan, engine: Engine, work: Work, emit: Emit, *, jobs: int = 2) -> Mapping[str, Outcome]:
    """Carry out the plan and return each needed layer's outcome. KeyboardInterrupt stops what runs and is raised."""
    began = time.monotonic()
    outcomes: dict[str, Outcome] = {}
    waiting = {step.name: step for step in plan.builds}
    for step in plan.steps:
        if isinstance(step.action, Reuse):
            if step.action.names_lost:
                move_tags(engine, step.action.image, step.action.names_lost)
            outcomes[step.name] = Reused(step.action.image)
    stop = threading.Event()
    running: dict[Future[Outcome], Step] = {}
    pool = ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="build")
    try:
        while waiting or running:
            for step in [step for step in waiting.values() if not _pending(step, plan, waiting, running)]:
                del waiting[step.name]
                culprit = _failed_need(step, outcomes)
                if culprit:
                    outcomes[step.name] = Blocked(culprit)
                    emit(LayerDone(step.name, "blocked", 0.0, message=f"not tried, '{culprit}' failed"))
                else:
                    running[pool.submit(_one, step, engine, work, emit, stop)] = step
            if running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    outcomes[running.pop(future).name] = future.result()
    except BaseException:
        # the engine cancels a build whose connection is closed
        stop.set()
        engine.close()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    emit(_summary(plan, outcomes, time.monotonic() - began))
    return outcomes


def _pending(step: Step, plan: Plan, waiting: Mapping[str, Step], running: Mapping[Future[Outcome], Step]) -> bool:
    busy = {*waiting, *(item.name for item in running.values())}
    return any(name in busy for name in plan.stack.node(step.name).needs)


def _failed_need(step: Step, outcomes: Mapping[str, Outcome]) -> str:
    """The layer at the root of it, when one that this step needs did not come to be."""
    for name in step.layer.layer.node.needs:
        outcome = outcomes.get(name)
        if isinstance(outcome, Failed):
            return name
        if isinstance(outcome, Blocked):
            return outcome.by
    return ""


def _one(step: Step, engine: Engine, work: Work, emit: Emit, stop: threading.Event) -> Outcome:
    assert isinstance(step.action, Build)
    began = time.monotonic()
    emit(LayerStarted(step.name, step.action.reason, work.log_path(step)))
    image = ""
    try:
        request = work.request(step)
        try:
            image = engine.build(request, _forward(step.name, emit))
        except BuildFailed as error:
            raise _located(error, step) from error
        smoke = work.smoke(step, image, emit)
        move_tags(engine, image, step.tags)
        size = next((held.size for held in [engine.image(image)] if held), 0)
    except StrixError as error:
        if image and not stop.is_set():
            engine.remove(image)
        seconds = time.monotonic() - began
        tail = error.log_tail if isinstance(error, BuildFailed | SmokeFailed) else ()
        emit(LayerDone(step.name, "failed", seconds, message=str(error), log_tail=tail))
        return Failed(error, seconds)
    seconds = time.monotonic() - began
    emit(LayerDone(step.name, "built", seconds, image=image, size=size))
    return Built(image, seconds, smoke)


def _located(error: BuildFailed, step: Step) -> BuildFailed:
    """The engine names a line of the rendered Dockerfile; people can only change the template behind it."""
    problem, places = error.problems[0], step.layer.layer.places
    if problem.place is None or problem.place.line is None or not places:
        return error
    place = places[min(problem.place.line, len(places)) - 1]
    return BuildFailed(Problem(problem.message, place, problem.cure), log_tail=error.log_tail)


def _forward(layer: str, emit: Emit) -> Callable[[BuildEvent], None]:
    def forward(event: BuildEvent) -> None:
        match event:
            case StepStarted(name=name):
                emit(StepProgress(layer, name))
            case StepDone(name=name, cached=cached, seconds=seconds):
                emit(StepProgress(layer, name, cached, seconds))
            case StepLog(text=text):
                emit(StepOutput(layer, text))

    return forward


def _summary(plan: Plan, outcomes: Mapping[str, Outcome], seconds: float) -> Finished:
    def count(kind: type[Outcome]) -> int:
        return sum(isinstance(outcome, kind) for outcome in outcomes.values())

    final = plan.step(plan.stack.final.name)
    good = not isinstance(final.action, NotNeeded) and isinstance(outcomes.get(final.name), Built | Reused)
    return Finished(count(Built), count(Reused), count(Failed), count(Blocked), seconds, final.tags[-1] if good else "")
