"""What happens around the steps of a trainer: metrics, progress, the guard against non-finite numbers, checkpoints."""

from __future__ import annotations

import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

from strix_train.batches import Proof
from strix_train.console import Console, duration
from strix_train.device import Device
from strix_train.errors import TrainError
from strix_train.runfolder import RunFolder, seal, step_of, whole_checkpoints
from strix_train.stopping import Stopper


def peak_memory(device: Device) -> int:
    """Return the most bytes in use so far: of the GPU where there is one, else of this process."""
    if device.is_gpu:
        import torch

        return int(torch.cuda.max_memory_allocated())
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def trim(metrics: Path, step: int) -> None:
    """Drop the lines of steps after `step`, and a half-written last line: those steps are done again."""
    if not metrics.is_file():
        return
    kept = []
    for line in metrics.read_text(encoding="utf-8").splitlines():
        try:
            if int(json.loads(line)["step"]) <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            continue
    aside = metrics.with_name(f".{metrics.name}.partial")
    aside.write_text("".join(kept), encoding="utf-8")
    aside.replace(metrics)


class Watch:
    """A trainer callback (see `callback`). Times are in seconds of wall clock, memory in bytes."""

    def __init__(
        self, folder: RunFolder, console: Console, stopper: Stopper, device: Device, proof: Proof, keep: int, main: bool
    ) -> None:
        self.folder, self.console, self.stopper, self.device, self.proof = folder, console, stopper, device, proof
        self.keep = keep
        self.main = main
        self.started = time.monotonic()
        self.step_began = self.started
        self.first_step = 0
        self.training_seconds = 0.0
        self.tokens = 0
        self.losses: list[float] = []

    def begin(self, step: int) -> None:
        """Note that steps begin after `step`."""
        self.first_step = step
        self.started = self.step_began = time.monotonic()

    def logged(self, state: Any, logs: dict[str, Any]) -> None:
        """Take one step's numbers: write them down, show them, and stop on those that are not finite."""
        if "loss" not in logs:
            return
        now = time.monotonic()
        seconds = now - self.step_began
        self.training_seconds += seconds
        tokens = self.proof.take_tokens()
        self.tokens += tokens
        loss, norm = float(logs["loss"]), float(logs.get("grad_norm") or 0.0)
        self.losses.append(loss)
        row = {
            "step": int(state.global_step),
            "epoch": round(float(state.epoch or 0.0), 6),
            "loss": loss if math.isfinite(loss) else str(loss),
            "lr": float(logs.get("learning_rate") or 0.0),
            "grad_norm": norm if math.isfinite(norm) else str(norm),
            "tokens": tokens,
            "tokens_per_s": round(tokens / seconds, 2) if seconds > 0 else 0.0,
            "seconds": round(seconds, 4),
            "peak_memory": peak_memory(self.device),
        }
        if self.main:
            with self.folder.metrics.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
        self._guard(int(state.global_step), loss, norm)
        step, total = int(state.global_step), int(state.max_steps)
        left = (total - step) * (now - self.started) / max(1, step - self.first_step)
        self.console.progress(
            f"step {step}/{total}  loss {loss:.4f}  {seconds:.2f} s/step  {row['tokens_per_s']:.0f} tokens/s"
            + (f"  {duration(left)} left" if step < total else ""),
            last=step == total,
        )

    def _guard(self, step: int, loss: float, norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        what = f"the loss became {loss}" if not math.isfinite(loss) else f"the gradient became {norm}"
        whole = whole_checkpoints(self.folder.checkpoints)
        last = f"; the last good checkpoint is {whole[-1]}" if whole else ""
        raise TrainError(
            f"{what} at step {step}, so the run was stopped{last}",
            cure="try a lower schedule.learning_rate, precision: fp32, or backend: hf",
        )

    def saved(self, step: int) -> None:
        """Seal the checkpoint that was just written, then drop those beyond `keep`."""
        if not self.main:
            return
        seal(self.folder.checkpoints / f"checkpoint-{step}")
        for old in whole_checkpoints(self.folder.checkpoints)[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)


def newest(folder: RunFolder) -> Path | None:
    """Return the newest whole checkpoint, after removing half-written ones."""
    whole = whole_checkpoints(folder.checkpoints)
    for path in folder.checkpoints.glob("checkpoint-*"):
        if path not in whole:
            shutil.rmtree(path, ignore_errors=True)
    return max(whole, key=step_of, default=None)


def callback(watch: Watch) -> Any:
    """Return the watch as a transformers TrainerCallback."""
    from transformers import TrainerCallback

    class Calls(TrainerCallback):  # type: ignore[misc]
        """Forwards the trainer's events."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            watch.begin(int(state.global_step))

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            watch.step_began = time.monotonic()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if watch.stopper.requested and int(state.global_step) < int(state.max_steps):
                control.should_save = True
                control.should_training_stop = True

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            watch.logged(state, logs or {})

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            watch.saved(int(state.global_step))

    return Calls()
