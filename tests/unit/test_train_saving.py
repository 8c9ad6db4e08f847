"""Saving: room for a checkpoint, and what a failure in the middle leaves."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strix_train import checkpoints
from strix_train.distributed.seats import Seat
from strix_train.distributed.together import Ranks
from strix_train.errors import TrainError
from strix_train.saving import Room, Saver, checkpoint_bytes, with_saver

MIB = 2**20


@dataclass(eq=False)
class Tensor:
    """As much of a tensor as is counted."""

    count: int
    size: int = 4
    requires_grad: bool = True

    def numel(self) -> int:
        return self.count

    def element_size(self) -> int:
        return self.size


class Model:
    def __init__(self, *tensors: Tensor, adapter: bool = True) -> None:
        self.tensors = tensors
        if adapter:
            self.peft_config = {"default": None}

    def parameters(self) -> tuple[Tensor, ...]:
        return self.tensors


class Base:
    """A trainer that saves as transformers' does: into the folder that _get_output_dir names."""

    def __init__(self, step: int, output: Path) -> None:
        self.state = SimpleNamespace(global_step=step, epoch=1.5)
        self.model, self.optimizer = Model(Tensor(10)), None
        self.output = output
        self.fail: BaseException | None = None
        self.batches: list[Any] = []

    def _get_output_dir(self, trial: Any) -> Path:
        return self.output

    def training_step(self, model: Any, inputs: Any) -> str:
        self.batches.append(inputs)
        return "done"

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        path = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"
        path.mkdir(parents=True)
        (path / "adapter_model.safetensors").write_text("weights")
        if self.fail:
            raise self.fail
        for name in ("trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
            (path / name).write_text(name)


@dataclass
class Calls:
    looked: list[Any] = field(default_factory=list)
    refused: str = ""

    def before_save(self, trainer: Any) -> None:
        if self.refused:
            raise TrainError(self.refused)


def trainer(folder: Path, step: int, calls: Calls | None = None, free: int = 10**12) -> Any:
    calls = calls or Calls()
    saver = Saver(folder, Ranks(Seat()), room=Room(folder, lambda path: free))
    made = with_saver(Base, saver, calls.looked.append, calls.before_save)(step, folder)
    made.saver = saver
    return made


def test_a_checkpoint_gets_its_name_when_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    trainer(folder, 3)._save_checkpoint(None, None)
    assert [path.name for path in folder.iterdir()] == ["checkpoint-3"]
    assert checkpoints.fault(folder / "checkpoint-3", deep=True) == ""
    assert checkpoints.manifest(folder / "checkpoint-3")["epoch"] == 1.5


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt(), OSError(errno.EIO, "input/output")])
def test_a_failure_leaves_nothing_half_written(tmp_path: Path, error: BaseException) -> None:
    made = trainer(tmp_path, 3)
    made._save_checkpoint(None, None)
    made.state.global_step, made.fail = 4, error
    with pytest.raises(type(error)):
        made._save_checkpoint(None, None)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]
    made.fail = None
    made._save_checkpoint(None, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-3", "checkpoint-4"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
        RuntimeError("[enforce fail at inline_container.cc:873] . PytorchStreamWriter failed writing file data/3"),
    ],
)
def test_a_full_disk_is_a_sentence(tmp_path: Path, error: Exception) -> None:
    made = trainer(tmp_path, 3, free=65 * MIB)
    made.fail = error
    made.saver.room.free = lambda path: 0 if any(path.rglob("*.safetensors")) else 65 * MIB
    with pytest.raises(TrainError, match=r"is full, so the checkpoint of step 3 was not kept; make room and add --res"):
        made._save_checkpoint(None, None)
    assert list(tmp_path.iterdir()) == []


def test_room_is_looked_for_before_anything_is_written(tmp_path: Path) -> None:
    free = 70 * MIB
    room = Room(tmp_path, lambda path: free)
    room.make(5 * MIB)
    with pytest.raises(TrainError) as caught:
        room.make(50 * MIB)
    assert "a checkpoint needs about 0.05 GiB and the disk of" in str(caught.value)
    assert "has 0.07 GiB left; make room and add --resume" in str(caught.value)
    made = trainer(tmp_path / "none" / "yet", 1, free=1000)
    with pytest.raises(TrainError, match="a checkpoint needs about"):
        made._save_checkpoint(None, None)
    assert not (tmp_path / "none").exists()


def test_older_checkpoints_give_way_and_the_newest_stays(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        trainer(tmp_path, step)._save_checkpoint(None, None)
    room = Room(tmp_path, lambda path: (200 if len(checkpoints.folders(tmp_path)) == 1 else 20) * MIB)
    room.make(100 * MIB)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]
    for step in (4, 5):
        trainer(tmp_path, step)._save_checkpoint(None, None)
    with pytest.raises(TrainError):
        room.make(100 * MIB, spare=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-3", "checkpoint-5"]


def test_what_may_not_be_kept_is_not_written(tmp_path: Path) -> None:
    made = trainer(tmp_path, 3, Calls(refused="the weight w holds nan"))
    with pytest.raises(TrainError, match="holds nan"):
        made._save_checkpoint(None, None)
    assert list(tmp_path.iterdir()) == []


def test_each_batch_is_seen_first(tmp_path: Path) -> None:
    calls = Calls()
    made = trainer(tmp_path, 3, calls)
    assert made.training_step(None, {"input_ids": 1}) == "done"
    assert calls.looked == made.batches == [{"input_ids": 1}]
    assert made._get_output_dir(None) == str(tmp_path)
    assert made.create_model_card() is None


def test_the_size_of_a_checkpoint() -> None:
    frozen, learning = Tensor(1000, 2, requires_grad=False), Tensor(10, 4)
    assert checkpoint_bytes(Model(frozen, learning), None) == 40 + 80
    assert checkpoint_bytes(Model(frozen, learning, adapter=False), None) == 2040 + 80
    state = {learning: {"exp_avg": Tensor(10, 1), "exp_avg_sq": Tensor(10, 1), "step": 3}}
    assert checkpoint_bytes(Model(frozen, learning), SimpleNamespace(state=state)) == 40 + 20


def test_what_is_gathered_of_pieces_takes_its_room_for_a_while() -> None:
    small, large = Tensor(10), Tensor(2**19)
    assert checkpoint_bytes(Model(Tensor(5, requires_grad=False), small), None, "fsdp") == 40 + 80
    # of the weights and of the optimizer's states, one lies there at a time
    assert checkpoint_bytes(Model(small, large, adapter=False), None, "fsdp") == 3 * (40 + 2**21) + 2 * 2**21
    few = SimpleNamespace(state={0: {"step": Tensor(1), "exp_avg": Tensor(2**18)}})
    assert checkpoint_bytes(Model(small, large, adapter=False), few, "fsdp") == (40 + 2**21) + (4 + 2**20) + 2**21
