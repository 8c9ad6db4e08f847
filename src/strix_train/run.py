"""One training run from a recipe to a run folder."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strix_train import afterwards, backends, environment, importing, quietly, resuming, ruling, summary, trackers
from strix_train import plan as plans
from strix_train.console import Console
from strix_train.distributed import seats
from strix_train.distributed.strategy import Shared, told
from strix_train.distributed.together import Ranks, joined
from strix_train.errors import InputError, Interrupted, Problem, TrainError
from strix_train.estimate import machines
from strix_train.estimate.memory import Backend
from strix_train.export import tools
from strix_train.plan import Plan
from strix_train.runfolder import RunFolder, create, find_unfinished
from strix_train.saving import is_full
from strix_train.stopping import Stopper

if TYPE_CHECKING:
    from strix_train.backends.base import Load

# what the frozen weights are held in
_BITS = {"qlora": 4, "lora8bit": 8}


def dry_run(plan: Plan, run_dir: Path | None) -> int:
    """Show what a run would do. Loads no torch and writes nothing."""
    from strix_train.device import banner

    console = Console()
    console.line(banner(None))
    summary.show_plan(console, plan)
    _tell_estimate(console, plan, machines.here())
    schedule = plan.loaded.recipe.schedule
    length = f"{schedule.steps} steps" if schedule.steps else f"{schedule.epochs:g} epochs"
    console.fact(
        "schedule", f"{length} of {schedule.rows} × {schedule.accumulation} rows, lr {schedule.learning_rate:g}"
    )
    console.fact(
        "run", f"{run_dir or Path(plan.loaded.recipe.output) / (plan.loaded.name + '-TIME')} (dry run: not made)"
    )
    return 0


def _tell_estimate(console: Console, plan: Plan, machine: machines.Machine, ranks: int = 1) -> None:
    """Tell what the run will take. Nothing is told of a model whose size is not known yet."""
    from strix_train.estimate.command import preflight

    told = preflight(plan, machine, "unsloth" if plan.backend.name == "unsloth" else "hf", ranks=ranks)
    if told:
        console.fact(*told)


@dataclass(frozen=True, slots=True)
class _Work:
    """What a run is about; `began` on the clock that never goes back."""

    plan: Plan
    console: Console
    stopper: Stopper
    resume: bool
    ranks: Ranks
    began: float
    shared: Shared = field(default_factory=Shared)

    @property
    def main(self) -> bool:
        """Whether this process writes the run folder."""
        return self.ranks.rank == 0


def run(word: str, settings: Sequence[str], *, dry: bool, run_dir: Path | None, resume: bool) -> int:
    """Train by a recipe and return the exit code. Raises InputError, TrainError and Interrupted."""
    began = time.monotonic()
    if dry:
        return dry_run(_planned(word, settings), run_dir)
    if os.environ.get("WORLD_SIZE", "1") not in ("", "1") and run_dir is None:
        raise InputError(Problem("several processes train together", cure="give them one folder with --run-dir"))
    seat = seats.here()
    console = Console(silent=not seat.main)
    if seat.world > 1:
        environment.prepare(offline=False)  # before torch is imported, to meet
    with joined(seat) as ranks:
        plan = _planned(word, settings)
        with Stopper(console.line) as stopper:
            return _run(_Work(plan, console, stopper, resume, ranks, began), run_dir)


def _planned(word: str, settings: Sequence[str]) -> Plan:
    plan = plans.make(word, settings)
    trackers.check(plan.loaded.recipe.logging)
    export = plan.loaded.recipe.export
    if export and "gguf" in export.to:
        tools.find(export.quantization)
    return plan


def _run(work: _Work, run_dir: Path | None) -> int:
    """Find the device and the folder, then train in it."""
    plan, recipe = work.plan, work.plan.loaded.recipe
    output = Path(recipe.output)
    wanted = RunFolder(Path(run_dir or output).absolute())
    if work.resume and work.main:
        wanted = find_unfinished(run_dir, output, plan.loaded.name)
        resuming.same_run(wanted, plan)
    environment.prepare(offline=plan.model.local)
    from strix_train import device as devices

    try:
        device = devices.find()
    except ImportError as error:
        raise TrainError(f"torch does not import here: {error}", cure="use an image, or install torch") from error
    work.console.line(devices.banner(device))
    importing.ensure(plan.model, work.console)
    model = ruling.model_facts(plan.model)
    found = ruling.find(device, model, _BITS.get(recipe.adapter.kind, 16))
    precision = devices.precision(recipe.precision, device, model)
    if work.ranks.world > 1 and not device.is_gpu:
        from strix_train.distributed import summing

        precision = summing.by_gloo(precision, recipe.precision)
    if work.main and not work.resume:
        wanted = create(run_dir, output, plan.loaded.name)
    from strix_train.backends.base import Load

    wish = Load(
        model=plan.model,
        device=device,
        precision=precision,
        max_length=recipe.schedule.max_length,
        recompute=device.is_gpu if recipe.recompute == "auto" else recipe.recompute == "on",
        seed=recipe.schedule.seed,
        rules=found,
        adapter=recipe.adapter,
    )
    wish, work = _sharing(wish, work)
    with wanted.held() if work.main else nullcontext():
        return _in(wanted, work, wish)


def _sharing(wish: Load, work: _Work) -> tuple[Load, _Work]:
    """Settle how several processes share the model, which says how it is loaded, and by what backend."""
    from strix_train.distributed import strategy

    plan, device = work.plan, wish.device
    name: Backend = "unsloth" if plan.backend.name == "unsloth" else "hf"
    shared = strategy.decide(plan, device, work.ranks.world, wish.precision, name)
    if not shared.whole and name == "unsloth":
        choice = backends.choose("auto", adapter=plan.loaded.recipe.adapter.kind, strategy=shared.kind)
        plan = replace(plan, backend=choice)
    if not shared.direct:
        device = replace(device, torch="cpu")
    gathered = shared.kind == "fsdp" and shared.direct and wish.adapter.kind in ("lora", "rslora")
    whole = shared.whole or gathered
    # dora makes its magnitudes of the weights as they are loaded
    stored = shared.kind == "fsdp" and not whole and wish.adapter.kind in ("full", "lora", "rslora")
    return replace(wish, device=device, whole=whole, stored=stored), replace(work, plan=plan, shared=shared)


def _in(folder: RunFolder, work: _Work, wish: Load) -> int:
    """Train in a folder that is ours. However it ends, status.json says so."""
    if work.main:
        # first of all: from here on the run can be resumed
        folder.write("recipe.resolved.yaml", _yaml(work.plan.resolved()))
        folder.reopen()
    summary.show_plan(work.console, work.plan)
    _tell_estimate(work.console, work.plan, machines.of_device(wish.device), work.ranks.world)
    work.console.fact("run", str(folder.path))
    log = folder.log if work.main else _elsewhere(work.ranks.rank)
    work.ranks.last_words = lambda text: _finish(folder, work, "failed", reason=text)
    with work.console.capturing(log):
        try:
            with work.ranks.explaining():
                code = _train(folder, work, wish)
        except (Interrupted, KeyboardInterrupt):
            _finish(folder, work, "interrupted", reason="stopped at once, without a checkpoint of its own")
            raise
        except TrainError as error:
            _keep_traceback(log)
            _finish(folder, work, "failed", reason=str(error))
            raise
        except Exception as error:
            _keep_traceback(log)
            _finish(folder, work, "failed", reason=f"{type(error).__name__}: {error}")
            raise explained(error, log) from error
    if work.main:
        afterwards.page(folder)
    else:
        log.unlink(missing_ok=True)
    return code


def _elsewhere(rank: int) -> Path:
    """Return the log of a process that writes no run folder; it stays where the process failed."""
    handle, name = tempfile.mkstemp(prefix=f"train-rank-{rank}-", suffix=".log")
    os.close(handle)
    return Path(name)


def _keep_traceback(log: Path) -> None:
    # where the disk is full, what is to be told is that
    with suppress(OSError), log.open("a", encoding="utf-8") as stream:
        traceback.print_exc(file=stream)


def _finish(folder: RunFolder, work: _Work, state: str, **facts: Any) -> None:
    if not work.main:
        return
    with suppress(OSError):
        if (folder.read_json("status.json") or {}).get("state") != "done":  # an export after the end may fail
            folder.finish(state, **facts)
        afterwards.page(folder)


def explained(error: Exception, log: Path) -> TrainError:
    """Return a library's exception as one sentence that names the log with the traceback."""
    text = " ".join(str(error).split())
    text = text if len(text) <= 300 else text[:297] + "…"
    kind = type(error).__name__
    if kind == "OutOfMemoryError" or "out of memory" in text.lower():
        return TrainError(
            Problem(f"the device is out of memory ({log} has the details)", cure="lower schedule.batch or max_length")
        )
    if is_full(error):
        return TrainError(Problem(f"the disk is full ({log} has the details)", cure="make room and add --resume"))
    return TrainError(f"training failed: {kind}: {text}", cure=f"the traceback is in {log}")


def _train(folder: RunFolder, work: _Work, wish: Load) -> int:
    from strix_train import device as devices
    from strix_train import methods, versions
    from strix_train.distributed import agreement, batch, strategy

    plan, console, device = work.plan, work.console, devices.find()
    for reason in wish.rules.reasons:
        console.fact("rule", reason)
    console.progress("loading the libraries and the model …")
    ruling.before_import(wish.rules)
    backend, choice = backends.start(plan.backend)
    ruling.after_import(wish.rules, device)
    quietly.libraries()
    console.fact("backend", f"{backend.version} ({choice.reason}), {wish.precision}")
    used = versions.collect(device, backend.name, plan.inputs())
    if work.resume and work.main:
        resuming.compare(console, folder, used)
    facts = agreement.facts_of(plan, used, resume=work.resume)
    work.ranks.agree("plan", facts | {"strategy": strategy.facts_of(work.shared)})
    if work.shared.reason:
        console.fact("strategy", told(work.shared))
        if work.shared.advice:
            console.fact("hint" if work.shared.fits else "warning", work.shared.advice)
    plan = batch.settled(plan, work.ranks, resuming.rows_of_a_step(folder, plan) if work.resume else 0, console)
    if work.main:
        schedule = plan.loaded.recipe.schedule
        rows = schedule.rows * schedule.accumulation * work.ranks.world
        folder.write_json("versions.json", {**used, "processes": work.ranks.world, "rows_per_step": rows})
    work.ranks.start(device)
    job = methods.Job(plan, backend, wish, device, folder, console, work.stopper, work.resume, work.ranks, work.shared)
    outcome = methods.method(plan.loaded.recipe.method.kind)(job)
    if not work.main:
        return 130 if outcome.interrupted else 0
    report = summary.report(plan, folder, backend, wish, outcome.facts, time.monotonic() - work.began)
    state = "interrupted" if outcome.interrupted else "done"
    folder.write_json("report.json", {"state": state, **report})
    if outcome.interrupted:
        folder.finish(state, step=outcome.facts["steps_done"])
        console.line(f"interrupted at step {outcome.facts['steps_done']}; go on with --resume --run-dir {folder.path}")
        return 130
    folder.finish(state, seconds=report["seconds"])
    summary.close(console, folder, report)
    afterwards.export(console, folder, plan.loaded.recipe.export)
    return 0


def _yaml(value: dict[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))
