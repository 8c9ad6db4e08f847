"""Room for a checkpoint, and a trainer that writes one aside, seals it and only then gives it its name."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_train import checkpoints
from strix_train.console import gigabytes
from strix_train.distributed import randomness, spool, zero
from strix_train.distributed.shards import local
from strix_train.distributed.together import Ranks
from strix_train.errors import TrainError

# File systems slow down and logs must go somewhere: never fill the last of a disk.
_SPARE = 64 * 2**20


def tensor_bytes(tensors: Any) -> int:
    """Return the bytes that tensors take in a file."""
    return sum(int(tensor.numel()) * int(tensor.element_size()) for tensor in tensors)


def checkpoint_bytes(model: Any, optimizer: Any, strategy: str = "none") -> int:
    """Return about how many bytes a checkpoint takes: what learns (or, with no adapter, all) and optimizer states.

    Before the first step an optimizer holds no states: two numbers of the weight's own kind are counted then. With
    strategy fsdp, large tensors of one of both lie on the disk a second time while they are written.
    """
    learns = [weight for weight in model.parameters() if weight.requires_grad]
    weights = learns if hasattr(model, "peft_config") else list(model.parameters())
    states = [value for state in (optimizer.state.values() if optimizer else ()) for value in state.values()]
    states = [value for value in states if hasattr(value, "numel")] or [*learns, *learns]
    passing = max(tensor_bytes(filter(spool.is_large, each)) for each in (weights, states)) if strategy == "fsdp" else 0
    return tensor_bytes(weights) + tensor_bytes(states) + passing


@dataclass(slots=True)
class Room:
    """The disk under a folder. `free`: a function that returns free bytes, so that a full disk can be tried."""

    folder: Path
    free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free

    def make(self, needed: int, spare: int = -1) -> None:
        """Check that `needed` bytes fit; drop all but the newest checkpoint where that helps. Raises TrainError.

        `spare`: the newest checkpoint up to this step stays, too.
        """
        if self._fits(needed):
            return
        checkpoints.prune(self.folder, keep=1, spare=spare)
        if not self._fits(needed):
            raise TrainError(
                f"a checkpoint needs about {gigabytes(needed)} and the disk of {self.folder} has "
                f"{gigabytes(self.free(self.existing()))} left",
                cure="make room and add --resume",
            )

    def _fits(self, needed: int) -> bool:
        return self.free(self.existing()) >= needed + _SPARE

    def existing(self) -> Path:
        """Return the folder, or the nearest one above it that is there."""
        folder = self.folder
        while not folder.exists():
            folder = folder.parent
        return folder


class Saver:
    """Carries a checkpoint through; one for each process, and process 0 writes it.

    `rows`: of a step; `strategy`: its kind.
    `spare` returns the step up to which the newest checkpoint must stay, whatever happens; -1 for none.
    """

    def __init__(
        self,
        folder: Path,
        ranks: Ranks,
        *,
        rows: int = 0,
        strategy: str = "none",
        room: Room | None = None,
        spare: Callable[[], int] = lambda: -1,
    ) -> None:
        self.folder, self.ranks, self.rows, self.strategy, self.spare = folder, ranks, rows, strategy, spare
        self.main = ranks.rank == 0
        self.room = room or Room(folder)
        self.writing = False

    def save(self, trainer: Any, write: Callable[[], None]) -> None:
        """Let `write` write the checkpoint aside, then publish it. A failure leaves nothing half-written."""
        step = int(trainer.state.global_step)
        if self.main:
            self.room.make(checkpoint_bytes(trainer.model, trainer.optimizer, self.strategy), self.spare())
            checkpoints.clear(self.folder)
        self.ranks.main_first("room")
        self.writing = True
        try:
            write()
            if self.main:
                if self.strategy == "deepspeed":
                    zero.complete(checkpoints.aside(self.folder), self.ranks.world)
                facts = {"world": self.ranks.world, "rows": self.rows, "strategy": self.strategy}
                facts |= {"epoch": trainer.state.epoch}
                checkpoints.publish(self.folder, step, **facts)
            self.ranks.main_first("saved")
        except BaseException as error:
            full = self._full(error)  # before what was written makes room again
            if self.main:
                checkpoints.clear(self.folder)
            if full:
                raise TrainError(
                    f"the disk of {self.folder} is full, so the checkpoint of step {step} was not kept",
                    cure="make room and add --resume",
                ) from error
            raise
        finally:
            self.writing = False

    def _full(self, error: BaseException) -> bool:
        """Whether the disk was full: libraries tell it as an OSError, in words, or not at all."""
        unsaid = isinstance(error, RuntimeError) and "PytorchStreamWriter" in str(error)
        return is_full(error) or (unsaid and self.room.free(self.room.existing()) < _SPARE)


def is_full(error: BaseException) -> bool:
    """Whether an error says that the disk is full, by its number or in a library's words."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left on device" in str(error)


def finite(model: Any) -> str:
    """Return the name of a learning weight that holds a number which is not finite, else nothing."""
    import torch

    for name, weight in model.named_parameters():
        if weight.requires_grad and not bool(torch.isfinite(local(weight.detach())).all()):
            return str(name)
    return ""


def with_saver(base: Any, saver: Saver, look: Callable[[Any], None], before_save: Callable[[Any], None]) -> Any:
    """Return a trainer class whose checkpoints go through `saver`.

    `look` sees each batch before its forward pass. `before_save` may refuse a checkpoint by raising.
    """

    class Saved(base):  # type: ignore[misc]
        """The backend's trainer with our way of saving."""

        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            look(inputs)
            return super().training_step(model, inputs, *args, **kwargs)

        def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            # how often a run is looked at changes nothing about its weights
            with randomness.kept():
                return super().evaluate(*args, **kwargs)

        def _get_output_dir(self, trial: Any) -> str:
            return str(checkpoints.aside(saver.folder)) if saver.writing else str(super()._get_output_dir(trial))

        def _save_checkpoint(self, model: Any, trial: Any) -> None:
            before_save(self)
            saver.save(self, lambda: super(Saved, self)._save_checkpoint(model, trial))

        def _save_rng_state(self, output_dir: str) -> None:
            if saver.ranks.world == 1:
                super()._save_rng_state(output_dir)
                return
            randomness.save(saver.ranks, super()._save_rng_state, Path(output_dir))

        def _load_rng_state(self, checkpoint: str | None) -> None:
            if checkpoint and checkpoints.manifest(Path(checkpoint)).get("world", 1) != saver.ranks.world:
                randomness.fresh(saver.ranks, int(self.args.seed), int(self.state.global_step))
                return
            super()._load_rng_state(checkpoint)

        def create_model_card(self, *args: Any, **kwargs: Any) -> None:
            """Checkpoints need no model card, and writing one may ask the hub."""

    return Saved
