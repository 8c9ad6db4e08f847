"""What happens around the steps: metrics, the guard with its checkpoints, time left, samples and signals."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strix_train import checkpoints
from strix_train import watch as watching
from strix_train.console import Console
from strix_train.device import Device
from strix_train.distributed.seats import Seat
from strix_train.distributed.together import Ranks
from strix_train.errors import TrainError
from strix_train.guard import Guard
from strix_train.runfolder import RunFolder
from strix_train.watch import Watch, lines, trim

CPU = Device("cpu", "cpu", "x", "y", 1, False, False)


class Clock:
    """A clock that the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Following:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []

    def numbers(self, step: int, values: Any) -> None:
        self.seen += [(step, name) for name in values]

    def texts(self, step: int, values: Any) -> None:
        self.seen += [(step, text) for text in values.values()]

    def close(self) -> None: ...


class Sampling:
    def due(self, step: int) -> bool:
        return step % 2 == 0

    wanted = due

    def take(self, step: int) -> dict[str, str]:
        return {"q": f"answer {step}"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(watching.time, "monotonic", made)
    return made


def make(folder: Path, guard: Guard | None = None, keep: int = 2, **more: Any) -> tuple[Watch, io.StringIO]:
    out = io.StringIO()
    recipe = SimpleNamespace(checkpoints=SimpleNamespace(keep=keep))
    job: Any = SimpleNamespace(
        rank=0,
        grouped=False,
        device=CPU,
        folder=RunFolder(folder),
        console=Console(out),
        ranks=Ranks(Seat()),
        stopper=SimpleNamespace(requested=False),
        plan=SimpleNamespace(loaded=SimpleNamespace(recipe=recipe)),
    )
    counter = SimpleNamespace(take_tokens=lambda: 50)
    sampling: Any = more.pop("sampling", SimpleNamespace(due=lambda step: False, wanted=lambda step: False))
    return Watch(job, counter, guard or Guard(), sampling, **more), out


def step(watch: Watch, number: int, loss: float, total: int = 40, **logs: float) -> None:
    state = SimpleNamespace(global_step=number, max_steps=total, epoch=number / 10)
    watch.logged(state, {"loss": loss, "grad_norm": 1.0, "learning_rate": 1e-3, "epoch": 0.5, **logs})


def checkpoint(folder: Path, number: int) -> None:
    path = checkpoints.aside(folder) / f"checkpoint-{number}"
    path.mkdir(parents=True)
    for name in ("trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (path / name).write_text(name)
    checkpoints.publish(folder, number)


def test_each_step_is_written_down_with_what_the_method_tells(tmp_path: Path, clock: Clock) -> None:
    following = Following()
    watch, _ = make(tmp_path, trackers=[following])
    watch.begin(0)
    clock.now += 2.0
    step(watch, 1, 2.5, **{"rewards/chosen": 0.5, "total_flos": 7.0})
    (row,) = lines(tmp_path / "metrics.jsonl")
    assert row["peak_memory"] > 0
    assert {**row, "peak_memory": 0} == {
        "step": 1,
        "epoch": 0.1,
        "loss": 2.5,
        "lr": 1e-3,
        "grad_norm": 1.0,
        "tokens": 50,
        "tokens_per_s": 25.0,
        "seconds": 2.0,
        "peak_memory": 0,
        "rewards/chosen": 0.5,
    }
    assert (1, "rewards/chosen") in following.seen


def test_evaluations_have_a_file_of_their_own(tmp_path: Path) -> None:
    watch, _ = make(tmp_path)
    state = SimpleNamespace(global_step=10, max_steps=40, epoch=1.0)
    for _ in range(2):  # the last one of a run is asked for again when it has ended
        watch.logged(state, {"eval_loss": 1.25, "eval_runtime": float("inf"), "epoch": 1.0})
    watch.logged(state, {"train_runtime": 3.0})
    assert lines(tmp_path / "evaluations.jsonl") == [{"step": 10, "eval_loss": 1.25, "eval_runtime": "inf"}]
    assert not (tmp_path / "metrics.jsonl").exists()


def test_the_time_left_counts_pauses_and_forgets_a_slow_first_step(tmp_path: Path, clock: Clock) -> None:
    watch, out = make(tmp_path)
    watch.begin(10)
    for number, seconds in ((11, 60.0), (12, 1.0), (13, 1.0)):
        watch.step_began = clock.now
        clock.now += seconds
        step(watch, number, 2.0, total=33)
        clock.now += 6.0  # the console speaks every few seconds only
    assert out.getvalue().splitlines()[-1] == "step 13/33  loss 2.0000  1.00 s/step  50 tokens/s  1 min 40 s left"


def test_samples_are_taken_and_handed_on(tmp_path: Path) -> None:
    following = Following()
    watch, _ = make(tmp_path, sampling=Sampling(), trackers=[following])
    step(watch, 1, 2.0)
    step(watch, 2, 2.0)
    assert [entry for entry in following.seen if "answer" in entry[1]] == [(2, "answer 2")]


def test_a_spike_goes_back_to_the_checkpoint_before_it(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    watch, _ = make(tmp_path, keep=1)
    for number in range(1, 41):
        step(watch, number, 2.0)
        if number % 2 == 0:
            checkpoint(folder, number)
            watch.saved()
    assert [path.name for path in folder.iterdir()] == ["checkpoint-40"]

    def goes_wrong() -> None:
        for number in range(41, 60):
            step(watch, number, 9.0)
            checkpoint(folder, number)
            watch.saved()

    with pytest.raises(TrainError) as caught:
        goes_wrong()
    assert str(caught.value) == (
        "the loss has been above 4.00 since step 41: it is 9 at step 45, and 2 was usual before, so the run was "
        f"stopped; the last good checkpoint is {folder}/checkpoint-40; "
        "try a lower schedule.learning_rate, precision: fp32, or backend: hf"
    )
    assert [path.name for path in folder.iterdir()] == ["checkpoint-40"]


def test_nan_without_any_checkpoint(tmp_path: Path) -> None:
    watch, _ = make(tmp_path)
    with pytest.raises(TrainError, match=r"became nan at step 1, so the run was stopped; there is no checkpoint from"):
        step(watch, 1, float("nan"))
    assert lines(tmp_path / "metrics.jsonl")[0]["loss"] == "nan"


def test_fp16_steps_that_were_left_out_do_not_stop_a_run(tmp_path: Path) -> None:
    watch, _ = make(tmp_path)
    watch.trainer = SimpleNamespace(accelerator=SimpleNamespace(optimizer_step_was_skipped=True))
    step(watch, 1, 2.0, grad_norm=float("inf"))
    watch.trainer = SimpleNamespace(accelerator=SimpleNamespace(optimizer_step_was_skipped=False))
    with pytest.raises(TrainError, match="the gradient became inf at step 2"):
        step(watch, 2, 2.0, grad_norm=float("inf"))


def test_a_signal_ends_the_run_after_the_step(tmp_path: Path) -> None:
    watch, _ = make(tmp_path)
    assert not watch.stopping()
    watch.job.stopper.requested = True
    assert watch.stopping()


def test_files_are_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": number}) + "\n" for number in range(1, 8)) + '{"step": 8, "lo')
    trim(path, 5)
    assert [row["step"] for row in lines(path)] == [1, 2, 3, 4, 5]
    path.write_bytes(b'\xff\n[1]\n{"step": "x"}\n{"step": 2, "answer": "\xc3\xbc"}\n')
    trim(path, 5)
    assert path.read_text() == '{"step": 2, "answer": "ü"}\n'
    trim(tmp_path / "none.jsonl", 5)
    assert not (tmp_path / "none.jsonl").exists()
