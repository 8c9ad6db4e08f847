"""One training run from a recipe to a run folder."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strix_train import plan as plans
from strix_train import summary
from strix_train.console import Console
from strix_train.errors import InputError, Interrupted, Problem, TrainError
from strix_train.plan import Plan
from strix_train.runfolder import RunFolder, create, find_unfinished

_MAY_DIFFER = ("output", "checkpoints", "questions")


def dry_run(plan: Plan, run_dir: Path | None) -> int:
    """Show what a run would do. Loads no torch and writes nothing."""
    from strix_train.device import banner

    console = Console()
    console.line(banner(None))
    summary.show_plan(console, plan)
    schedule = plan.loaded.recipe.schedule
    length = f"{schedule.steps} steps" if schedule.steps else f"{schedule.epochs:g} epochs"
    console.fact(
        "schedule", f"{length} of {schedule.batch} × {schedule.accumulation} rows, lr {schedule.learning_rate:g}"
    )
    console.fact(
        "run", f"{run_dir or Path(plan.loaded.recipe.output) / (plan.loaded.name + '-TIME')} (dry run: not made)"
    )
    return 0


def run(word: str, settings: Sequence[str], *, dry: bool, run_dir: Path | None, resume: bool) -> int:
    """Train by a recipe and return the exit code. Raises InputError, TrainError and Interrupted."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    plan = plans.make(word, settings)
    if dry:
        return dry_run(plan, run_dir)
    if world > 1 and run_dir is None:
        raise InputError(Problem("several processes train together", cure="give them one folder with --run-dir"))
    console = Console(silent=rank > 0)
    from strix_train.stopping import Stopper

    with Stopper(console.line) as stopper:
        return _run(plan, console, stopper, run_dir, resume, rank, world)


def _run(plan: Plan, console: Console, stopper: Any, run_dir: Path | None, resume: bool, rank: int, world: int) -> int:
    from strix_train import environment

    began = time.monotonic()
    recipe = plan.loaded.recipe
    output = Path(recipe.output)
    if resume:
        folder = find_unfinished(run_dir, output, plan.loaded.name)
        _same(folder, plan)
    environment.prepare(offline=plan.model.local)
    from strix_train import device as devices

    try:
        device = devices.find()
    except ImportError as error:
        raise TrainError(f"torch does not import here: {error}", cure="use an image, or install torch") from error
    console.line(devices.banner(device))
    precision = devices.precision(recipe.precision, device)
    if not resume:
        absolute = Path(run_dir or output).absolute()
        folder = create(run_dir, output, plan.loaded.name) if rank == 0 else RunFolder(absolute)
    summary.show_plan(console, plan)
    console.fact("run", str(folder.path))
    folder.reopen()
    from strix_train.backends.base import Load

    wish = Load(
        model=plan.model,
        device=device,
        precision=precision,
        max_length=recipe.schedule.max_length,
        recompute=device.is_gpu if recipe.recompute == "auto" else recipe.recompute == "on",
        seed=recipe.schedule.seed,
    )
    log = folder.log if rank == 0 else Path(os.devnull)
    with console.capturing(log):
        try:
            code = _train(plan, console, stopper, folder, wish, resume, rank, world, began)
        except (Interrupted, KeyboardInterrupt):
            _finish(folder, rank, "interrupted", reason="stopped before a step was done")
            raise
        except TrainError as error:
            _keep_traceback(log)
            _finish(folder, rank, "failed", reason=str(error))
            raise
        except Exception as error:
            _keep_traceback(log)
            _finish(folder, rank, "failed", reason=f"{type(error).__name__}: {error}")
            raise explained(error, folder.log) from error
    return code


def _keep_traceback(log: Path) -> None:
    with log.open("a", encoding="utf-8") as stream:
        traceback.print_exc(file=stream)


def _finish(folder: RunFolder, rank: int, state: str, **facts: Any) -> None:
    if rank == 0:
        folder.finish(state, **facts)


def explained(error: Exception, log: Path) -> TrainError:
    """Return a library's exception as one sentence that names the log with the traceback."""
    text = " ".join(str(error).split())
    text = text if len(text) <= 300 else text[:297] + "…"
    kind = type(error).__name__
    if kind == "OutOfMemoryError" or "out of memory" in text.lower():
        return TrainError(
            Problem(f"the device is out of memory ({log} has the details)", cure="lower schedule.batch or max_length")
        )
    if isinstance(error, OSError) and error.errno == 28:
        return TrainError(Problem(f"the disk is full ({log} has the details)", cure="make room and add --resume"))
    return TrainError(f"training failed: {kind}: {text}", cure=f"the traceback is in {log}")


def _train(
    plan: Plan,
    console: Console,
    stopper: Any,
    folder: RunFolder,
    wish: Any,
    resume: bool,
    rank: int,
    world: int,
    began: float,
) -> int:
    from strix_train import backends, methods, versions

    console.progress("loading the libraries and the model …")
    backend, choice = backends.start(plan.backend)
    _quiet_libraries()
    console.fact("backend", f"{backend.version} ({choice.reason}), {wish.precision}")
    if rank == 0:
        folder.write("recipe.resolved.yaml", _yaml(plan.resolved()))
        folder.write_json("versions.json", versions.collect(wish.device, backend.name, plan.inputs()))
    job = methods.Job(plan, backend, wish, wish.device, folder, console, stopper, resume, rank, world)
    outcome = methods.method(plan.loaded.recipe.method)(job)
    if rank:
        return 130 if outcome.interrupted else 0
    report = summary.report(plan, folder, backend, wish, outcome.facts, time.monotonic() - began)
    state = "interrupted" if outcome.interrupted else "done"
    folder.write_json("report.json", {"state": state, **report})
    if outcome.interrupted:
        folder.finish(state, step=outcome.facts["steps_done"])
        console.line(f"interrupted at step {outcome.facts['steps_done']}; go on with --resume --run-dir {folder.path}")
        return 130
    folder.finish(state, seconds=report["seconds"])
    summary.close(console, folder, report)
    return 0


def _same(folder: RunFolder, plan: Plan) -> None:
    """Check that a run goes on with the recipe and the data that it began with."""
    from strix_train.recipe import places

    if not (folder.path / "recipe.resolved.yaml").is_file():
        raise InputError(Problem(f"{folder.path} is not a run folder", cure="leave --resume out to begin a run"))
    old, new = places.read(folder.path / "recipe.resolved.yaml").value, plan.resolved()
    differing = sorted(key for key in {*old, *new} if key not in _MAY_DIFFER and old.get(key) != new.get(key))
    before = (folder.read_json("versions.json") or {}).get("inputs") or {}
    now = plan.inputs()
    differing += [
        key.replace("_sha256", " data") for key in ("train_sha256", "eval_sha256") if before.get(key) != now[key]
    ]
    if differing:
        raise InputError(
            Problem(
                f"the recipe is not the one that {folder.path} began with: {', '.join(differing)} differ",
                cure="resume with the same recipe and data, or leave --resume out",
            )
        )


def _yaml(value: dict[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))


def _quiet_libraries() -> None:
    """Keep the libraries' warnings in the log, and their progress bars out of it."""
    import logging

    logging.captureWarnings(True)
    try:
        from datasets.utils.logging import disable_progress_bar
        from transformers.utils import logging as hf

        hf.disable_progress_bar()
        disable_progress_bar()
    except ImportError:
        pass
