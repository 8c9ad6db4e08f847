"""Build several targets in one go: what two of them have under one key is built once, the rest of them side by side."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from strix_finetune import graph, names
from strix_finetune.builder import BuildOptions, Planned, run_build
from strix_finetune.crew import Check, Crew
from strix_finetune.engine.base import Engine
from strix_finetune.errors import StrixError
from strix_finetune.events import Emit, Event, Notice, Targeted, TargetRow, TargetsDone
from strix_finetune.execute import Blocked, Built, Failed, Outcome, Pulled, Reused
from strix_finetune.plan import Build, Pull, Step
from strix_finetune.workspace import Workspace

Outcomes = Mapping[str, Outcome]


@dataclass(frozen=True, slots=True)
class Target:
    """One of the targets: `plan` makes its plan, which may lock anew; `log` writes its layers' logs."""

    workspace: Workspace
    options: BuildOptions
    plan: Callable[[BuildOptions, Emit], Planned]
    log: Callable[[Event], None] = lambda event: None

    @property
    def name(self) -> str:
        return self.workspace.stack.target.id

    def report(self, emit: Emit) -> Emit:
        """Says which target an event is of, and writes it down."""

        one_at_a_time = threading.Lock()

        def told(event: Event) -> None:
            with one_at_a_time:
                self.log(event)
            emit(Targeted(self.name, event))

        return told


def plan_all(targets: Sequence[Target], emit: Emit) -> list[Planned]:
    """The plans, one after another: nothing is built before all of them are good."""
    return [target.plan(target.options, target.report(emit)) for target in targets]


def shared(plans: Sequence[Planned]) -> dict[str, int]:
    """Key → number of the first target that would build it, of the layers that more than one would."""
    first: dict[str, int] = {}
    found: dict[str, int] = {}
    for number, planned in enumerate(plans):
        for step in planned.plan.steps:
            if isinstance(step.action, Build | Pull):
                key = step.layer.key
                if first.setdefault(key, number) != number:
                    found[key] = first[key]
    return found


def build_all(targets: Sequence[Target], engine: Engine, emit: Emit, *, jobs: int) -> tuple[TargetRow, ...]:
    """Build all of them and return a row for each. KeyboardInterrupt stops what runs and is raised."""
    began = time.monotonic()
    plans = plan_all(targets, emit)
    common = shared(plans)
    if common:
        layers = sorted({step.name for planned in plans for step in planned.plan.steps if step.layer.key in common})
        emit(Notice(f"built once for several targets: {', '.join(layers)}"))
    done: list[dict[str, Outcome]] = [{} for _ in targets]
    spent = [0.0 for _ in targets]
    for number, target in enumerate(targets):
        steps = [step for step in plans[number].plan.steps if common.get(step.layer.key) == number]
        if steps:
            options = replace(target.options, layers=tuple(step.name for step in steps), jobs=jobs)
            spent[number] -= time.monotonic()
            done[number] |= _carry_out(target, options, engine, emit)
            spent[number] += time.monotonic()
    rest: Crew[Outcomes | StrixError] = Crew(emit, engine.close)
    errors: dict[int, StrixError] = {}
    waiting = []
    for number, target in enumerate(targets):
        broken = _broken(plans[number].plan.steps, common, done)
        if broken:
            done[number] |= {name: Blocked(by) for name, by in broken.items() if name not in done[number]}
        else:
            waiting.append((number, target))
    # each stack is a chain for the most part, so as many stacks as jobs use the machine as well as one can
    each = max(1, jobs // max(1, len(waiting)))
    try:
        while waiting or rest.busy:
            while waiting and len(rest.busy) < jobs:
                number, target = waiting.pop(0)
                options = replace(target.options, jobs=each)
                if options.rebuild:
                    # what is shared was built anew a moment ago, and under this target's name it is the same layer
                    once = {step.name for step in plans[number].plan.steps if step.layer.key in common}
                    wanted = graph.wanted(target.workspace.stack, options.layers)
                    left = tuple(name for name in wanted if name not in once)
                    if not left:
                        continue
                    options = replace(options, layers=left)
                spent[number] -= time.monotonic()
                rest.start(str(number), partial(_in_thread, target, options, engine))
            if not rest.busy:
                break
            index, outcomes = rest.next()
            spent[int(index)] += time.monotonic()
            if isinstance(outcomes, StrixError):
                errors[int(index)] = outcomes
            else:
                done[int(index)] = {**outcomes, **done[int(index)]}
    except BaseException:
        rest.stop()
        raise
    rows = tuple(_row(target, done[number], errors.get(number), spent[number]) for number, target in enumerate(targets))
    emit(TargetsDone(rows, time.monotonic() - began))
    return rows


def _in_thread(
    target: Target, options: BuildOptions, engine: Engine, emit: Emit, check: Check
) -> Outcomes | StrixError:
    check()
    try:
        return _carry_out(target, options, engine, emit)
    except StrixError as error:
        # this target's failure alone
        return error


def _carry_out(target: Target, options: BuildOptions, engine: Engine, emit: Emit) -> Outcomes:
    report = target.report(emit)
    return run_build(target.plan(options, report), target.workspace, engine, options, report)


def _broken(steps: Sequence[Step], common: Mapping[str, int], done: Sequence[Outcomes]) -> dict[str, str]:
    """Layers of a target that cannot be: a shared one failed. Layer → the layer at the root of it."""
    found: dict[str, str] = {}
    for step in steps:
        if not isinstance(step.action, Build | Pull):
            continue
        number = common.get(step.layer.key)
        outcome = done[number].get(step.name) if number is not None else None
        by = step.name if isinstance(outcome, Failed) else outcome.by if isinstance(outcome, Blocked) else ""
        by = by or next((found[need] for need in step.layer.layer.node.needs if need in found), "")
        if by:
            found[step.name] = by
    return found


def _row(target: Target, outcomes: Outcomes, error: StrixError | None, seconds: float) -> TargetRow:
    def count(*kinds: type[Outcome]) -> int:
        return sum(isinstance(outcome, kinds) for outcome in outcomes.values())

    stack = target.workspace.stack
    failed = [name for name, outcome in outcomes.items() if isinstance(outcome, Failed)]
    blocked = sorted({outcome.by for outcome in outcomes.values() if isinstance(outcome, Blocked)})
    message = str(error) if error else ", ".join(f"{name} failed" for name in failed or blocked)
    image = isinstance(outcomes.get(stack.final.name), Built | Pulled | Reused) and not message
    return TargetRow(
        stack.target.id,
        stack.channel.name,
        "failed" if message else "done",
        count(Built),
        count(Pulled),
        count(Reused),
        count(Failed),
        count(Blocked),
        seconds,
        names.final_ref(stack.target.id) if image else "",
        message,
    )
