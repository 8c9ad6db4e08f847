"""The cells of a measurement: what each runs, running it, and what came of it, told honestly."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from strix_train.errors import InputError, Place
from strix_train.estimate import advice, configs
from strix_train.estimate.machines import Machine
from strix_train.estimate.memory import Backend
from strix_train.names import find_model
from strix_train.recipe.load import load

ADAPTERS = ("full", "lora", "lora8bit", "qlora")
BACKENDS: tuple[Backend, ...] = ("unsloth", "hf")
# Steps that compile, tune and fill caches, and are not counted.
WARM = 3
_WORDS = ("north", "stone", "river", "seven", "glass", "copper", "harbour", "bridge", "tower", "market", "ferry")


@dataclass(frozen=True, slots=True)
class Size:
    """Rows of a pass, passes of a step, tokens of a row, and steps of a run."""

    batch: int = 4
    accumulation: int = 1
    length: int = 512
    steps: int = 13


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the table. `model`: a folder, a hub id or a bare name."""

    model: str
    adapter: str
    backend: Backend

    @property
    def name(self) -> str:
        """A name for its folder."""
        model = "".join(sign if sign.isalnum() or sign in "-_." else "-" for sign in self.model).strip("-.")
        return f"{model}-{self.adapter}-{self.backend}"


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a cell. `state`: ok, out of memory, not run, failed. Seconds of the median step, bytes at the peak.

    `estimate`: bytes that `train estimate` gives for the peak, for a whole process where there is no GPU; 0 unknown.
    """

    model: str
    adapter: str
    backend: str
    state: str
    reason: str = ""
    seconds: float = 0.0
    memory: int = 0
    tokens_per_s: float = 0.0
    estimate: int = 0
    estimated_seconds: float = 0.0
    loss_first: float = 0.0
    loss_last: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)


def prepare(folder: Path, size: Size) -> None:
    """Write the text that all cells learn from: rows are cut from it, so that each is full."""
    import random

    chance = random.Random(1)
    words = max(8, 2 * size.batch * size.accumulation) * size.length
    (folder / "text.txt").write_text(" ".join(chance.choices(_WORDS, k=words)) + "\n", encoding="utf-8")


def recipe(folder: Path, cell: Cell, size: Size, settings: Sequence[str] = ()) -> Path:
    """Write a cell's recipe and return its path."""
    here = Path(cell.model)
    value: dict[str, Any] = {
        "model": str(here.absolute()) if here.exists() else cell.model,
        "data": {"train": str(folder / "text.txt")},
        "method": "cpt",
        "adapter": cell.adapter if cell.adapter == "full" else {"kind": cell.adapter, "r": 16, "alpha": 32},
        "backend": cell.backend,
        "schedule": {
            "steps": size.steps,
            "batch": size.batch,
            "accumulation": size.accumulation,
            "learning_rate": 1e-4 if cell.adapter != "full" else 1e-5,
            "scheduler": "constant",
            "warmup": 0,
            "max_length": size.length,
        },
        "checkpoints": {"every": 0, "keep": 1},
        "guard": {"spike": 0},
    }
    path = folder / f"{cell.name}.yaml"
    path.write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")
    load(path, settings)  # a --set that is wrong is told at once
    return path


def estimated(path: Path, settings: Sequence[str], machine: Machine, backend: Backend) -> advice.Estimate | None:
    """Return the estimate for a cell, None where nothing on this machine says how large its model is."""
    loaded = load(path, settings)
    try:
        model = find_model(loaded.recipe.model, path.parent, Place(loaded.recipe.model))
        shape, _ = configs.find(model)
    except InputError:
        return None
    return advice.of_recipe(loaded.recipe, shape, machine, backend=backend)


def run(
    folder: Path, cell: Cell, size: Size, machine: Machine, *, settings: Sequence[str], limit: float, anyway: bool
) -> Result:
    """Run one cell and return what came of it. Raises KeyboardInterrupt, after its process has ended."""
    path = recipe(folder, cell, size, settings)
    guess = estimated(path, settings, machine, cell.backend)
    told = {
        "estimate": (guess.parts.total if machine.is_gpu else guess.needed) if guess else 0,
        "estimated_seconds": round(guess.speed.seconds, 4) if guess and guess.speed else 0.0,
    }
    result = Result(cell.model, cell.adapter, cell.backend, "not run")

    def ended(state: str, reason: str, **more: Any) -> Result:
        return Result(**{**result.as_json(), "state": state, "reason": reason, **told, **more})

    if guess and not guess.fits(machine) and not anyway:
        # on memory that the system lives in, trying could freeze the machine
        gib = (guess.needed / 2**30, machine.usable / 2**30)
        return ended("not run", f"the estimate is {gib[0]:.1f} GiB, of {gib[1]:.1f} GiB; --anyway tries it")
    work = folder / cell.name
    words = [sys.executable, "-m", "strix_train", "run", str(path), "--run-dir", str(work)]
    words += [word for setting in settings for word in ("--set", setting)]
    code, said = _process(words, folder / f"{cell.name}.log", limit)
    try:
        if code is None:
            return ended("not run", f"it took longer than {limit:.0f} s")
        if code == 0:
            return ended("ok", "", **_measured(work))
        last = (said.strip().splitlines() or ["it said nothing"])[-1].removeprefix("train: ")
        if "out of memory" in last or code == -signal.SIGKILL:
            return ended("out of memory", last if code > 0 else "the system ended the process")
        return ended("not run" if code == 2 else "failed", last)
    finally:
        for name in ("adapter", "model", "checkpoints"):
            shutil.rmtree(work / name, ignore_errors=True)


def _process(words: Sequence[str], log: Path, limit: float) -> tuple[int | None, str]:
    """Run a command in a group of its own; return its exit code, None where it took too long, and its last words."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        code: int | None
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                time.sleep(0.2)
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    text = log.read_text(encoding="utf-8", errors="replace")
    return code, "\n".join(line for line in text.splitlines() if line.startswith("train: "))


def _measured(work: Path) -> dict[str, Any]:
    """Return what a finished run measured: the median of its whole steps after the first ones.

    The last steps of a pass over the rows have fewer of them, or one that is filled up and wants a mask.
    """
    rows = [json.loads(line) for line in (work / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    late = rows[WARM:] or rows[-1:]
    tokens = max(row["tokens"] for row in late)
    seconds = statistics.median(row["seconds"] for row in late if row["tokens"] == tokens)
    report = json.loads((work / "report.json").read_text(encoding="utf-8"))
    return {
        "seconds": round(seconds, 4),
        "memory": int(report["peak_memory"]),
        "tokens_per_s": round(tokens / seconds, 1) if seconds else 0.0,
        "loss_first": float(rows[0]["loss"]),
        "loss_last": float(rows[-1]["loss"]),
    }
