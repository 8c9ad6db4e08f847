"""Carry out a plan: build what must be built, as many layers at once as allowed, smoke-test, then move the tags.

A failed layer stops its children only. Events go out, nothing is printed here.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from strix_finetune.crew import Check, Crew
from strix_finetune.engine.base import BuildEvent, BuildRequest, Engine, StepDone, StepLog, StepStarted
from strix_finetune.errors import BuildFailed, EngineError, Problem, SmokeFailed, StrixError, WorkError
from strix_finetune.events import (
    Emit,
    Finished,
    LayerDone,
    LayerStarted,
    Notice,
    SmokeResult,
    StepOutput,
    StepProgress,
)
from strix_finetune.located import located
from strix_finetune.plan import Build, NotNeeded, Plan, Pull, Reuse, Step
from strix_finetune.tags import move_tags


@dataclass(frozen=True, slots=True)
class Built:
    image: str
    seconds: float
    smoke: tuple[SmokeResult, ...]


@dataclass(frozen=True, slots=True)
class Reused:
    """`smoke`: what its tests said, where they were run again."""

    image: str
    smoke: tuple[SmokeResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Pulled:
    """Fetched from a registry. `smoke`: what its tests said, where it had passed others than those of today."""

    image: str
    seconds: float
    smoke: tuple[SmokeResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    error: StrixError
    seconds: float


@dataclass(frozen=True, slots=True)
class Blocked:
    """Not tried: `by` is the layer that it needs and that failed."""

    by: str


Outcome = Built | Reused | Pulled | Failed | Blocked


@dataclass(frozen=True, slots=True)
class Work:
    """What the executor needs to know about one layer beyond its plan: how to ask for the build and how to test it.

    `request` may fetch and bootstrap (it is called when the layer's turn comes); `log_path` is shown to the user.
    `weigh` raises TooLarge for an image that is larger than its layer may be. `pull` fetches a layer from a registry:
    its image, which is gone at the end of the block if it has no name then, and whether it must be tested before that.
    """

    request: Callable[[Step, Emit], BuildRequest]
    smoke: Callable[[Step, str, Emit], tuple[SmokeResult, ...]]
    log_path: Callable[[Step], str]
    weigh: Callable[[Step, str], None] = lambda step, image: None
    pull: Callable[[Step, Emit, Check], AbstractContextManager[tuple[str, bool]]] | None = None


def execute(plan: Plan, engine: Engine, work: Work, emit: Emit, *, jobs: int = 2) -> Mapping[str, Outcome]:
    """Carry out the plan and return each needed layer's outcome. KeyboardInterrupt stops what runs and is raised."""
    began = time.monotonic()
    outcomes: dict[str, Outcome] = {}
    waiting = {step.name: step for step in plan.steps if _has_work(step)}
    crew: Crew[Outcome] = Crew(emit, engine.close)
    try:
        for step in plan.steps:
            if isinstance(step.action, Reuse) and not step.action.retest:
                outcomes[step.name] = _reuse(step, step.action, engine, emit)
        while waiting or crew.busy:
            for step in [step for step in waiting.values() if not _pending(step, plan, {*waiting, *crew.busy})]:
                culprit = _failed_need(step, outcomes)
                if culprit:
                    outcomes[step.name] = Blocked(culprit)
                    emit(LayerDone(step.name, "blocked", 0.0, message=f"not tried, '{culprit}' failed"))
                elif len(crew.busy) < max(1, jobs):
                    carry_out = _CARRY_OUT[type(step.action)]
                    crew.start(step.name, partial(carry_out, step, engine, work))
                else:
                    continue
                del waiting[step.name]
            if crew.busy:
                name, outcome = crew.next()
                outcomes[name] = outcome
    except BaseException:
        crew.stop()
        raise
    emit(_summary(plan, outcomes, time.monotonic() - began))
    return outcomes


def _reuse(step: Step, action: Reuse, engine: Engine, emit: Emit) -> Outcome:
    try:
        move_tags(engine, action.image, action.names_lost)
    except StrixError as error:
        emit(LayerDone(step.name, "failed", 0.0, message=str(error)))
        return Failed(error, 0.0)
    return Reused(action.image)


def _has_work(step: Step) -> bool:
    return isinstance(step.action, Build | Pull) or (isinstance(step.action, Reuse) and step.action.retest)


def _pending(step: Step, plan: Plan, unfinished: Set[str]) -> bool:
    """Whether a layer must wait. What exists is tested whatever its parents do; nothing is built on what fails."""
    return isinstance(step.action, Build) and any(name in unfinished for name in plan.stack.node(step.name).needs)


def _failed_need(step: Step, outcomes: Mapping[str, Outcome]) -> str:
    """The layer at the root of it, when one that this step needs did not come to be."""
    if not isinstance(step.action, Build):
        return ""
    for name in step.layer.layer.node.needs:
        outcome = outcomes.get(name)
        if isinstance(outcome, Failed):
            return name
        if isinstance(outcome, Blocked):
            return outcome.by
    return ""


def _one(step: Step, engine: Engine, work: Work, emit: Emit, check: Check) -> Outcome:
    """Build, test and tag one layer. `check` raises when the driver was interrupted: no name moves after that."""
    assert isinstance(step.action, Build)
    began = time.monotonic()
    emit(LayerStarted(step.name, step.action.reason, work.log_path(step)))
    image = ""
    try:
        with _disk_faults(step.name):
            request = work.request(step, emit)
            try:
                image = engine.build(request, _forward(step.name, emit))
            except BuildFailed as error:
                raise located(error, step) from error
            work.weigh(step, image)
            smoke = work.smoke(step, image, emit)
        check()
        move_tags(engine, image, step.tags)
    except StrixError as error:
        if image:
            _discard(image, step.name, engine, emit)
        seconds = time.monotonic() - began
        tail = error.log_tail if isinstance(error, BuildFailed | SmokeFailed) else ()
        emit(LayerDone(step.name, "failed", seconds, message=str(error), log_tail=tail))
        return Failed(error, seconds)
    seconds = time.monotonic() - began
    emit(LayerDone(step.name, "built", seconds, image=image, size=_size(image, engine)))
    return Built(image, seconds, smoke)


def _retest(step: Step, engine: Engine, work: Work, emit: Emit, check: Check) -> Outcome:
    """Test an image that exists. Its names stay when it fails, and the next build tests it again."""
    assert isinstance(step.action, Reuse)
    began = time.monotonic()
    image = step.action.image
    emit(LayerStarted(step.name, step.action.reason, work.log_path(step), "test"))
    try:
        with _disk_faults(step.name):
            smoke = work.smoke(step, image, emit)
        check()
        move_tags(engine, image, step.action.names_lost)
    except StrixError as error:
        seconds = time.monotonic() - began
        tail = error.log_tail if isinstance(error, SmokeFailed) else ()
        emit(LayerDone(step.name, "failed", seconds, message=str(error), log_tail=tail))
        return Failed(error, seconds)
    emit(LayerDone(step.name, "tested", time.monotonic() - began, image=image, size=_size(image, engine)))
    return Reused(image, smoke)


def _fetch(step: Step, engine: Engine, work: Work, emit: Emit, check: Check) -> Outcome:
    """Pull one layer, test it where its tests are others by now, and tag it."""
    assert isinstance(step.action, Pull)
    assert work.pull is not None
    began = time.monotonic()
    emit(LayerStarted(step.name, step.action.reason, work.log_path(step), "pull"))
    try:
        with _disk_faults(step.name), work.pull(step, emit, check) as (image, untested):
            smoke = work.smoke(step, image, emit) if untested else ()
            check()
            move_tags(engine, image, step.tags)
    except StrixError as error:
        seconds = time.monotonic() - began
        tail = error.log_tail if isinstance(error, SmokeFailed) else ()
        emit(LayerDone(step.name, "failed", seconds, message=str(error), log_tail=tail))
        return Failed(error, seconds)
    seconds = time.monotonic() - began
    emit(LayerDone(step.name, "pulled", seconds, image=image, size=_size(image, engine)))
    return Pulled(image, seconds, smoke)


_CARRY_OUT = {Build: _one, Reuse: _retest, Pull: _fetch}


@contextmanager
def _disk_faults(layer: str) -> Iterator[None]:
    """A full disk or a file that vanished is this layer's failure and no other's."""
    try:
        yield
    except BrokenPipeError:
        # nobody reads what we say: that is no fault of a layer
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        what = (error.strerror or str(error)).lower()
        cure = "free some space and build again" if error.errno == errno.ENOSPC else "build again"
        raise WorkError(Problem(f"'{layer}' could not be built: {where}{what}", cure=cure)) from error


def _discard(image: str, layer: str, engine: Engine, emit: Emit) -> None:
    try:
        engine.remove(image)
    except EngineError as error:
        emit(Notice(f"{layer}: the image {image} is left over: {error}"))


def _size(image: str, engine: Engine) -> int:
    """In bytes; a number to show, so 0 rather than a failure when the engine does not say it."""
    with suppress(EngineError):
        held = engine.image(image)
        return held.size if held else 0
    return 0


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
    good = not isinstance(final.action, NotNeeded) and isinstance(outcomes.get(final.name), Built | Reused | Pulled)
    image = final.tags[-1] if good else ""
    return Finished(count(Built), count(Reused), count(Failed), count(Blocked), seconds, image, pulled=count(Pulled))
