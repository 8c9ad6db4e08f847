"""One training run from a recipe to a run folder."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strix_train import plan as plans
from strix_train.console import Console, duration
from strix_train.errors import InputError, Interrupted, Problem, TrainError
from strix_train.plan import Plan
from strix_train.runfolder import RunFolder, create, find_unfinished

_MAY_DIFFER = ("output", "checkpoints", "questions")


def dry_run(plan: Plan, run_dir: Path | None) -> int:
    """Show what a run would do. Loads no torch and writes nothing."""
    from strix_train.device import banner

    console = Console()
    console.line(banner(None))
    _show_plan(console, plan)
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
    environment.prepare(offline=plan.model.local)
    from strix_train import device as devices

    try:
        device = devices.find()
    except ImportError as error:
        raise TrainError(f"torch does not import here: {error}", cure="use an image, or install torch") from error
    console.line(devices.banner(device))
    recipe = plan.loaded.recipe
    precision = devices.precision(recipe.precision, device)
    output = Path(recipe.output)
    if resume:
        folder = find_unfinished(run_dir, output, plan.loaded.name)
        _same(folder, plan)
    elif rank == 0:
        folder = create(run_dir, output, plan.loaded.name)
    else:
        folder = RunFolder(Path(run_dir or output).absolute())
    _show_plan(console, plan)
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
            traceback.print_exc()
            _finish(folder, rank, "failed", reason=str(error))
            raise
        except Exception as error:
            traceback.print_exc()
            _finish(folder, rank, "failed", reason=f"{type(error).__name__}: {error}")
            raise explained(error, folder.log) from error
    return code


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
    report = _report(plan, folder, backend, wish, outcome.facts, time.monotonic() - began)
    state = "interrupted" if outcome.interrupted else "done"
    folder.write_json("report.json", {"state": state, **report})
    if outcome.interrupted:
        folder.finish(state, step=outcome.facts["steps_done"])
        console.line(f"interrupted at step {outcome.facts['steps_done']}; go on with --resume --run-dir {folder.path}")
        return 130
    folder.finish(state, seconds=report["seconds"])
    _close(console, folder, report)
    return 0


def _report(
    plan: Plan, folder: RunFolder, backend: Any, wish: Any, facts: dict[str, Any], seconds: float
) -> dict[str, Any]:
    import json

    from strix_train.plot import loss_curve

    rows = [json.loads(line) for line in folder.metrics.read_text(encoding="utf-8").splitlines()]
    try:
        drawn = loss_curve(folder.metrics, folder.path / "loss.png", f"{plan.loaded.name}: {plan.model.word}")
    except ImportError:
        print("matplotlib is not installed: no loss.png")
        drawn = False
    return {
        "recipe": plan.loaded.name,
        "model": plan.model.word,
        "method": plan.loaded.recipe.method,
        "backend": backend.name,
        "device": wish.device.name,
        "precision": wish.precision,
        "loss_first": rows[0]["loss"] if rows else None,
        "loss_last": rows[-1]["loss"] if rows else None,
        "loss_curve": "loss.png" if drawn else None,
        "adapter": "adapter" if folder.adapter.is_dir() else None,
        "seconds": round(seconds, 3),
        **facts,
    }


def _close(console: Console, folder: RunFolder, report: dict[str, Any]) -> None:
    shown = folder.path
    if report["loss_curve"]:
        console.fact("loss", f"{report['loss_first']:.4f} → {report['loss_last']:.4f}, curve in {shown / 'loss.png'}")
    if report.get("questions"):
        asked = report["questions"]
        console.fact(
            "answers", f"{asked['before']} of {asked['of']} right before, {asked['after']} of {asked['of']} after"
        )
    console.fact("adapter", str(folder.adapter))
    console.fact("time", f"{duration(report['seconds'])}, of it {duration(report['training_seconds'])} in steps")
    console.fact("try", f'train generate {shown} --prompt "…"')


def _show_plan(console: Console, plan: Plan) -> None:
    console.fact("recipe", str(plan.loaded.path))
    found = f" ({plan.model.source})" if plan.model.local and plan.model.word != plan.model.source else ""
    console.fact("model", plan.model.word + found)
    facts = plans.findings(plan)
    parts = [f"{facts.rows} rows of {plan.train.format}"]
    if plan.evaluation:
        parts.append(f"{len(plan.evaluation.rows)} for evaluation")
    if plan.questions:
        parts.append(f"{len(plan.questions)} questions")
    console.fact("data", ", ".join(parts))
    for sentence in warnings(facts):
        console.fact("warning", sentence)


def warnings(facts: plans.Findings) -> list[str]:
    """Return what is odd about the data, though not wrong."""
    found = []
    if facts.repeated:
        found.append(f"{facts.repeated} training rows repeat another one word for word")
    if facts.shared_with_eval:
        found.append(f"{facts.shared_with_eval} evaluation rows are also training rows, so their loss shows nothing")
    if facts.questions_in_training:
        found.append(f"{facts.questions_in_training} questions are also training rows, so they are not held out")
    return found


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
