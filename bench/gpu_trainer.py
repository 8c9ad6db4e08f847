"""Our own trainer, built as `train` builds it, on one loaded model for several sizes: what bench.gpu_speed measures."""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from bench import random_model

LEARNING_RATE, RANK, ALPHA = 1e-4, 16, 32


@dataclass(frozen=True, slots=True)
class Size:
    """Rows of a pass, passes of a step, tokens of a row."""

    batch: int
    accumulation: int
    length: int

    @property
    def name(self) -> str:
        """A short name."""
        return f"{self.batch}x{self.length}x{self.accumulation}"


@dataclass(slots=True)
class Stage:
    """Some steps of a run under one setting. Seconds of each step that counts, bytes at the peak.

    `around` is entered before its first step and left behind its last one; `warm` steps do not count.
    """

    name: str
    steps: int = 4
    warm: int = 1
    around: Callable[[], Any] | None = None
    seconds: list[float] = field(default_factory=list)
    peak: int = 0
    error: str = ""

    @property
    def median(self) -> float:
        """Seconds of the median step."""
        return statistics.median(self.seconds) if self.seconds else float("nan")


def recipe(
    folder: Path, model: Path, size: Size, *, steps: int, adapter: str, backend: str, packing: bool = False
) -> Path:
    """Write a recipe and return its path."""
    data = random_model.write(folder / "unused.jsonl", random_model.rows(8, 8))
    value: dict[str, Any] = {
        "model": str(model.absolute()),
        # rows come as tokens, from whoever measures
        "data": {"train": str(data), "packing": packing},
        "method": "sft",
        "responses_only": False,
        "adapter": {"kind": adapter, "r": RANK, "alpha": ALPHA},
        "backend": backend,
        "schedule": {
            "steps": steps,
            "batch": size.batch,
            "accumulation": size.accumulation,
            "learning_rate": LEARNING_RATE,
            "scheduler": "constant",
            "warmup": 0,
            "max_length": size.length,
            "seed": 3,
        },
        "checkpoints": {"every": 0, "keep": 1},
        "guard": {"spike": 0},
        # on a CPU, too, so that --tiny goes the same way
        "recompute": "on",
    }
    path = folder / f"{size.name}-{adapter}-{backend}{'-packed' if packing else ''}.yaml"
    path.write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")
    return path


class Ours:
    """A model that is loaded once and trained at several sizes, through strix_train's own loop."""

    def __init__(self, folder: Path, first: Path) -> None:
        from strix_train import backends, environment, plan, ruling
        from strix_train import device as devices
        from strix_train.backends.base import Load
        from strix_train.console import Console
        from strix_train.methods import Job, ready
        from strix_train.runfolder import RunFolder
        from strix_train.stopping import Stopper

        self.folder = folder
        made = plan.make(str(first))
        kept = made.loaded.recipe
        environment.prepare(offline=True)
        device = devices.find()
        model = ruling.model_facts(made.model)
        found = ruling.find(device, model, {"qlora": 4, "lora8bit": 8}.get(kept.adapter.kind, 16))
        ruling.before_import(found)
        backend, choice = backends.start(made.backend)
        ruling.after_import(found, device)
        wish = Load(
            model=made.model,
            device=device,
            precision=devices.precision(kept.precision, device, model),
            max_length=kept.schedule.max_length,
            recompute=True,
            seed=kept.schedule.seed,
            rules=found,
            adapter=kept.adapter,
        )
        console = Console()
        console.fact("backend", f"{backend.version} ({choice.reason}), {wish.precision}")
        self.job = Job(made, backend, wish, device, RunFolder(folder), console, Stopper(console.line), False)
        began = time.monotonic()
        self.ready = ready.load(self.job)
        self.adapted = False
        console.fact("loaded", f"in {time.monotonic() - began:.1f} s")

    def run(self, path: Path, stages: Sequence[Stage], rows: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        """Train by a recipe on rows of tokens, one stage after the other, and return the metrics of each step."""
        from strix_train import plan
        from strix_train.methods import ready, sft
        from strix_train.runfolder import RunFolder

        steps = sum(stage.steps for stage in stages)
        made = plan.make(str(path), [f"schedule.steps={steps}"])
        folder = self.folder / f"run-{path.stem}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        length = made.loaded.recipe.schedule.max_length
        job = replace(self.job, plan=made, folder=RunFolder(folder), wish=replace(self.job.wish, max_length=length))
        carry_out = vars(sft)["carry_out"]

        def once(job: Any, made: Any, **more: Any) -> None:
            if not self.adapted:
                ready.adapt(job, made, **more)
                self.adapted = True

        def staged(job: Any, setup: Any) -> Any:
            build = setup.build

            def building(wrap: Any) -> Any:
                trainer = build(wrap)
                trainer.add_callback(following(stages, job.device.is_gpu))
                return trainer

            setup.build = building
            return carry_out(job, setup)

        before = {name: vars(sft)[name] for name in ("ready", "Encoder", "carry_out")}
        vars(sft).update(ready=_Loaded(self.ready, once), Encoder=_tokens(rows), carry_out=staged)
        try:
            sft.train(job)
        finally:
            vars(sft).update(before)
        from strix_train.watch import lines

        found = lines(folder / "metrics.jsonl")
        shutil.rmtree(folder, ignore_errors=True)
        clean()
        return found


def _tokens(rows: Sequence[Sequence[int]]) -> Any:
    """Return what stands for the encoder: it has the tokens already, and all of them are learned."""
    from strix_train.tokens import Column

    class Tokens:
        """See `strix_train.tokens.Encoder`."""

        def __init__(self, *_: Any) -> None:
            self.column = Column()
            for row in rows:
                self.column.append(row)

        def answers(self, *_: Any) -> dict[str, Column]:
            """Return the rows."""
            return {"input_ids": self.column, "labels": self.column}

    return Tokens


class _Loaded:
    """strix_train.methods.ready, whose model is loaded already."""

    def __init__(self, made: Any, adapt: Any) -> None:
        self._made, self.adapt = made, adapt

    def load(self, job: Any) -> Any:
        """Return the loaded model."""
        return self._made

    def __getattr__(self, name: str) -> Any:
        from strix_train.methods import ready

        return getattr(ready, name)


def following(stages: Sequence[Stage], gpu: bool) -> Any:
    """Return a callback that walks through the stages and times their steps."""
    import torch
    from transformers import TrainerCallback

    def wait() -> None:
        if gpu:
            torch.cuda.synchronize()

    class Following(TrainerCallback):  # type: ignore[misc]
        """Times steps between two moments when the device is idle."""

        def __init__(self) -> None:
            self.at, self.done, self.began = 0, 0, 0.0
            self.stack = ExitStack()

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            wait()
            stage = stages[self.at]
            if self.done == 0 and stage.around is not None:
                try:
                    self.stack.enter_context(stage.around())
                except Exception as error:  # noqa: BLE001 - one setting that fails must not cost the others
                    stage.error = repr(error)
            if self.done == min(stage.warm, stage.steps - 1) and gpu:
                torch.cuda.reset_peak_memory_stats()
            wait()
            self.began = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            wait()
            seconds = time.perf_counter() - self.began
            stage = stages[self.at]
            if self.done >= min(stage.warm, stage.steps - 1):
                stage.seconds.append(seconds)
                if gpu:
                    stage.peak = max(stage.peak, torch.cuda.max_memory_allocated())
            self.done += 1
            if self.done >= stage.steps:
                self.stack.close()
                self.at, self.done = min(self.at + 1, len(stages) - 1), 0

    return Following()


def clean() -> None:
    """Give freed memory back."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def quiet_environment() -> Any:
    """Set what keeps the libraries off the network, before they are imported."""
    before = {name: os.environ.get(name) for name in random_model.OFFLINE}
    os.environ.update(random_model.OFFLINE)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
