"""What happens around the steps of a trainer: metrics, progress, the guard, samples, and what a signal asks for."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from strix_train import checkpoints
from strix_train.console import duration
from strix_train.device import Device
from strix_train.errors import TrainError
from strix_train.guard import Guard, Verdict

if TYPE_CHECKING:
    from strix_train.methods import Job
    from strix_train.sampling import Sampling
    from strix_train.trackers import Tracker

# What the trainers log that metrics.jsonl has under a name of ours, or that says nothing about a step.
_OURS = ("loss", "grad_norm", "learning_rate", "epoch", "num_tokens", "total_flos", "step")


class Counter(Protocol):
    """Counts the tokens that went through the model."""

    def take_tokens(self) -> int:
        """Return the tokens that all processes together have seen since the last call."""


def peak_memory(device: Device) -> int:
    """Return the most bytes in use so far: of the GPU where there is one, else of this process."""
    if device.is_gpu:
        import torch

        return int(torch.cuda.max_memory_allocated())
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file that a killed process may have left half-written."""
    found = []
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("step"), int):
            found.append(value)
    return found


def trim(path: Path, step: int) -> None:
    """Drop the lines of steps after `step`, and a half-written one: those steps are done again."""
    if not path.is_file():
        return
    kept = [json.dumps(row, ensure_ascii=False) + "\n" for row in lines(path) if row["step"] <= step]
    aside = path.with_name(f".{path.name}.partial")
    aside.write_text("".join(kept), encoding="utf-8")
    aside.replace(path)


class Watch:
    """A trainer callback (see `callback`). Times are in seconds of wall clock, memory in bytes."""

    def __init__(
        self, job: Job, counter: Counter, guard: Guard, sampling: Sampling, trackers: Sequence[Tracker] = ()
    ) -> None:
        self.job, self.counter, self.guard, self.sampling, self.trackers = job, counter, guard, sampling, trackers
        self.main = job.rank == 0
        self.trainer: Any = None
        self.started = time.monotonic()
        self.step_began = self.started
        self.first_step = 0
        self.training_seconds = 0.0
        self.tokens = 0
        self._recent: deque[float] = deque(maxlen=50)

    def begin(self, step: int) -> None:
        """Note that steps begin after `step`."""
        self.first_step = step
        self.started = self.step_began = time.monotonic()

    def logged(self, state: Any, logs: Mapping[str, Any]) -> None:
        """Take what the trainer logs: one step's numbers, or an evaluation's."""
        if "loss" in logs:
            self._step(int(state.global_step), int(state.max_steps), float(state.epoch or 0.0), logs)
        elif "eval_loss" in logs:
            self._evaluated(int(state.global_step), logs)

    def _step(self, step: int, total: int, epoch: float, logs: Mapping[str, Any]) -> None:
        now = time.monotonic()
        seconds = now - self.step_began
        self.training_seconds += seconds
        self._recent.append(seconds)
        tokens = self.counter.take_tokens()
        self.tokens += tokens
        loss, norm = float(logs["loss"]), float(logs.get("grad_norm") or 0.0)
        row: dict[str, Any] = {
            "step": step,
            "epoch": round(epoch, 6),
            "loss": _written(loss),
            "lr": float(logs.get("learning_rate") or 0.0),
            "grad_norm": _written(norm),
            "tokens": tokens,
            "tokens_per_s": round(tokens / seconds, 2) if seconds > 0 else 0.0,
            "seconds": round(seconds, 4),
            "peak_memory": peak_memory(self.job.device),
        }
        row |= {name: _written(value) for name, value in _numbers(logs) if name not in _OURS}
        if self.main:
            self._write("metrics.jsonl", row)
            for tracker in self.trackers:
                tracker.numbers(step, {name: value for name, value in _numbers(row) if name != "step"})
        verdict = self.guard.look(step, loss, norm, left_out=self._left_out())
        if verdict:
            raise self.stop(verdict)
        self.job.console.progress(
            f"step {step}/{total}  loss {loss:.4f}  {seconds:.2f} s/step  {row['tokens_per_s']:.0f} tokens/s"
            + (f"  {duration(self._left(step, total, now))} left" if step < total else ""),
            last=step == total,
        )
        if self.sampling.due(step):
            answers = self.sampling.take(step)
            for tracker in self.trackers:
                tracker.texts(step, answers)
        if self.sampling.wanted(step):
            self.job.ranks.main_first("sampled")

    def _left(self, step: int, total: int, now: float) -> float:
        """Return the seconds that the rest will take: steps as of late, and the pauses between them as so far."""
        done = max(1, step - self.first_step)
        pauses = max(0.0, now - self.started - self.training_seconds) / done
        usual = sorted(self._recent)[len(self._recent) // 2]
        return (total - step) * (usual + pauses)

    def _evaluated(self, step: int, logs: Mapping[str, Any]) -> None:
        row = {"step": step, **{name: _written(value) for name, value in _numbers(logs) if name.startswith("eval_")}}
        known = lines(self.job.folder.path / "evaluations.jsonl") if self.main else []
        # the one at the end may be that of the last step again, in other seconds
        if self.main and not any(old["step"] == step and old.get("eval_loss") == row["eval_loss"] for old in known):
            self._write("evaluations.jsonl", row)
            for tracker in self.trackers:
                tracker.numbers(step, {"eval_loss": float(logs["eval_loss"])})

    def _write(self, name: str, row: Mapping[str, Any]) -> None:
        with (self.job.folder.path / name).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")

    def _left_out(self) -> bool:
        """Whether the optimizer passed this step over, since gradients did not fit into fp16."""
        accelerator = getattr(self.trainer, "accelerator", None)
        return bool(getattr(accelerator, "optimizer_step_was_skipped", False))

    def stop(self, verdict: Verdict) -> TrainError:
        """Return the error that ends the run, after removing the checkpoints of steps that went wrong."""
        folder = self.job.folder.checkpoints
        if self.main:
            checkpoints.drop_after(folder, verdict.good)
        good = [path for path in checkpoints.whole(folder) if checkpoints.step_of(path) <= verdict.good]
        last = f"; the last good checkpoint is {good[-1]}" if good else "; there is no checkpoint from before it"
        return TrainError(
            f"{verdict.what}, so the run was stopped{last}",
            cure="try a lower schedule.learning_rate, precision: fp32, or backend: hf",
        )

    def before_save(self, trainer: Any) -> None:
        """Refuse to keep weights that no run could go on from."""
        from strix_train.saving import finite

        name = finite(trainer.model)
        if name:
            step = int(trainer.state.global_step)
            raise self.stop(
                Verdict(step, f"the weight {name} holds numbers that are not finite at step {step}", step - 1)
            )

    def saved(self) -> None:
        """Drop the checkpoints that need not stay. While the loss looks suspicious, the one before stays as well."""
        if self.main:
            keep = self.job.plan.loaded.recipe.checkpoints.keep
            checkpoints.prune(self.job.folder.checkpoints, keep, spare=self.spare())

    def spare(self) -> int:
        """Return the last step before the loss became suspicious, -1 while it is not."""
        since = self.guard.suspicious_since
        return -1 if since is None else since - 1

    def stopping(self) -> bool:
        """Whether this step is the last one, since a signal came to one of the processes."""
        requested = self.job.stopper.requested
        self.job.ranks.check()
        if not self.job.grouped:
            return requested
        import torch

        asked = torch.tensor([int(requested)], device=self.job.device.torch if self.job.device.is_gpu else "cpu")
        torch.distributed.all_reduce(asked, op=torch.distributed.ReduceOp.MAX)
        self.job.stopper.requested = bool(asked.item())
        return self.job.stopper.requested


def _numbers(logs: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [(name, float(value)) for name, value in logs.items() if isinstance(value, (int, float))]


def _written(value: float) -> float | str:
    """Return a number as JSON can hold it."""
    return value if math.isfinite(value) else str(value)


def callback(watch: Watch) -> Any:
    """Return the watch as a transformers TrainerCallback."""
    from transformers import TrainerCallback

    class Calls(TrainerCallback):  # type: ignore[misc]
        """Forwards the trainer's events."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # a resumed state brings those of its checkpoint, and a recipe may say others meanwhile
            state.compute_steps(args, state.max_steps)
            watch.begin(int(state.global_step))

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            watch.step_began = time.monotonic()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if watch.stopping():
                control.should_save = True
                control.should_training_stop = True

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            watch.logged(state, logs or {})

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            watch.saved()

    return Calls()
