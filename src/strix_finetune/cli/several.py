"""plan and build for several targets: `--target gfx1151,gfx1100,cpu`."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from strix_finetune.errors import InputError
from strix_finetune.workspace import Options, Workspace

if TYPE_CHECKING:
    from strix_finetune.builder import BuildOptions, Planned
    from strix_finetune.engine.base import Engine
    from strix_finetune.events import Emit
    from strix_finetune.several import Target


def several(options: Options) -> tuple[Options, ...]:
    """The options of each target where --target names more than one, else nothing. Raises InputError for a gap."""
    if "," not in options.target:
        return ()
    targets = [target.strip() for target in options.target.split(",")]
    if not all(targets):
        raise InputError(f"--target cannot be '{options.target}'", cure="write targets with one comma between them")
    return tuple(replace(options, target=target) for target in dict.fromkeys(targets))


def plan(each: tuple[Options, ...], layers: tuple[str, ...], offline: Path | None, source: str, **how: bool) -> int:
    """Show the plan of each target, and what is built once for several."""
    from strix_finetune.builder import announce
    from strix_finetune.events import Notice
    from strix_finetune.several import plan_all, shared

    with ExitStack() as stack:
        targets, _, emit = _open(each, layers, offline, source, stack, jobs=1, rebuild=False, **how)
        plans = plan_all(targets, emit)
        for target, planned in zip(targets, plans, strict=True):
            announce(planned.plan, target.report(emit))
        common = shared(plans)
        found = {step.name for planned in plans for step in planned.plan.steps if step.layer.key in common}
        if found:
            emit(Notice(f"built once for several targets: {', '.join(sorted(found))}"))
    return 0


def build(
    each: tuple[Options, ...],
    layers: tuple[str, ...],
    offline: Path | None,
    source: str,
    *,
    jobs: int,
    rebuild: bool,
    **how: bool,
) -> int:
    """Build them all; 1 when one of them failed."""
    from strix_finetune.several import build_all

    with ExitStack() as stack:
        targets, engine, emit = _open(each, layers, offline, source, stack, jobs=jobs, rebuild=rebuild, **how)
        engine.reap("io.strix-finetune.pid")
        rows = build_all(targets, engine, emit, jobs=jobs)
    return int(any(row.outcome == "failed" for row in rows))


def _open(
    each: tuple[Options, ...],
    layers: tuple[str, ...],
    offline: Path | None,
    source: str,
    stack: ExitStack,
    *,
    jobs: int,
    rebuild: bool,
    locked: bool,
    as_json: bool,
) -> tuple[list[Target], Engine, Emit]:
    """Every target's definitions, before the engine is asked for anything."""
    from strix_finetune.builder import BuildOptions, Reporter
    from strix_finetune.cli.build import source_of
    from strix_finetune.engine.select import connect
    from strix_finetune.logs import LayerLogs
    from strix_finetune.requests import log_folder
    from strix_finetune.several import Target
    from strix_finetune.ui import make_view
    from strix_finetune.workspace import open_workspace

    opened = [(options, open_workspace(options, os.environ)) for options in each]
    engine = connect(each[0].engine, os.environ)  # type: ignore[arg-type]
    stack.callback(engine.close)
    view = make_view(json=as_json)
    stack.callback(view.close)
    emit = Reporter(view)
    targets = []
    for options, workspace in opened:
        logs = LayerLogs(log_folder(workspace))
        stack.callback(logs.close)
        registry = source_of(source, workspace, options, emit)
        how = BuildOptions(layers, jobs, locked, rebuild, registry)
        targets.append(Target(workspace, how, _planner(workspace, engine, options, offline), logs.write))
    return targets, engine, emit


def _planner(
    workspace: Workspace, engine: Engine, options: Options, offline: Path | None
) -> Callable[[BuildOptions, Emit], Planned]:
    from strix_finetune.cli.build import planned

    return lambda how, emit: planned(workspace, engine, how, emit, options, offline)
