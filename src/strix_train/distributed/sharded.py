"""A trainer whose model is sharded already: nothing wraps it again, and its checkpoints are those of one process.

A checkpoint holds whole tensors, in the files and in the order that a trainer without FSDP writes and reads. So a run
may go on with any number of processes, and with another strategy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from strix_train.distributed import shards, spool
from strix_train.distributed.shards import How
from strix_train.errors import TrainError


def with_shards(base: Any, how: How, *, main: bool) -> Any:
    """Return a trainer class for a model that `shards.shard` has shared. `main`: this process writes."""

    class Shared(base):  # type: ignore[misc]
        """The backend's trainer for a model in pieces."""

        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            _teach(self.accelerator, how)

        def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
            made = super().create_optimizer(*args, **kwargs)
            # one that has whole weights, gathered at that moment, would train nothing
            shards.proven(weight for group in self.optimizer.param_groups for weight in group["params"])
            return made

        def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
            folder = Path(output_dir or self.args.output_dir)
            state = shards.gathered(self.model, folder if main else None)
            if main:
                self._save(str(folder), state_dict=state)

        def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
            state = gathered_states(self.optimizer, Path(output_dir) if main else None)
            with _standing_in(self, SimpleNamespace(state_dict=lambda: state)):
                super()._save_optimizer_and_scheduler(output_dir)

        def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
            if checkpoint is None:
                return
            import torch

            # the trainer's own way reads all states onto every device
            files = [Path(checkpoint, name) for name in ("optimizer.pt", "scheduler.pt")]
            states, schedule = (torch.load(file, map_location="cpu", mmap=True, weights_only=True) for file in files)
            self.optimizer.load_state_dict(shared_states(self.optimizer, states))
            self.lr_scheduler.load_state_dict(schedule)

        def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
            load_weights(self.model, Path(resume_from_checkpoint))

    return Shared


@contextmanager
def _standing_in(trainer: Any, optimizer: Any) -> Iterator[None]:
    """Let something else be the trainer's optimizer while it writes its state."""
    kept, trainer.optimizer = trainer.optimizer, optimizer
    try:
        yield
    finally:
        trainer.optimizer = kept


def _teach(accelerator: Any, how: How) -> None:
    """Let accelerate wrap nothing, clip gradients that lie in pieces, and send none before the last pass of a step."""
    prepare = accelerator.prepare_model

    def prepare_model(model: Any, device_placement: bool | None = None, evaluation_mode: bool = False) -> Any:
        return prepare(model, device_placement=False, evaluation_mode=True)

    def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        accelerator.unscale_gradients()
        return clip([weight for weight in parameters if weight.grad is not None], float(max_norm))

    @contextmanager
    def no_sync(model: Any) -> Iterator[None]:
        _hold(model, how, last=False)
        try:
            yield
        finally:
            _hold(model, how, last=True)

    accelerator.prepare_model, accelerator.clip_grad_norm_, accelerator.no_sync = (
        prepare_model,
        clip_grad_norm_,
        no_sync,
    )


def _hold(model: Any, how: How, *, last: bool) -> None:
    """Say what happens after a pass: before the last one of a step, gradients and gathered weights may stay."""
    if how.quiet:
        model.set_requires_gradient_sync(last)
    model.set_is_last_backward(last)
    if how.keep == "step":
        model.set_reshard_after_backward(last)


def clip(weights: list[Any], most: float) -> Any:
    """Scale the gradients so that their norm over all processes is at most `most`; return what it was."""
    import torch

    grads = [shards.local(weight.grad) for weight in weights]
    squares = [norm.float().square() for norm in torch._foreach_norm(grads)] if grads else []
    total = torch.stack(squares).sum() if squares else torch.zeros(())
    torch.distributed.all_reduce(total)
    norm = total.sqrt()
    scale = (most / (norm + 1e-6)).clamp(max=1.0)
    if grads:
        torch._foreach_mul_(grads, scale)
    return norm


def _plain(optimizer: Any) -> Any:
    return getattr(optimizer, "optimizer", optimizer)


def gathered_states(optimizer: Any, folder: Path | None) -> dict[str, Any]:
    """Return an optimizer's state as one process would have it, on the disk of `folder`; all processes must ask."""
    state = _plain(optimizer).state_dict()
    found: dict[Any, dict[str, Any]] = {}
    for number, values in sorted(state["state"].items()):
        mine: dict[str, Any] = {}
        for name, value in values.items():
            value = shards.whole(value) if hasattr(value, "numel") else value
            if folder:
                mine[name] = spool.kept(value, folder) if hasattr(value, "numel") else value
        if folder:
            found[number] = mine
    return {"state": found, "param_groups": state["param_groups"]}


def shared_states(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of one process cut into pieces as the weights are."""
    weights = [weight for group in _plain(optimizer).param_groups for weight in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    if len(weights) != len(numbers):
        raise TrainError(f"the checkpoint's optimizer knows {len(numbers)} weights and {len(weights)} learn here")
    found = {}
    for number, weight in zip(numbers, weights, strict=True):
        values = state["state"].get(number)
        if values is not None:
            found[number] = {
                name: shards.like(value, weight) if getattr(value, "shape", None) == weight.shape else _own(value)
                for name, value in values.items()
            }
    return {**state, "state": found}


def _own(value: Any) -> Any:
    """Return a copy of what lies in a mapped file, which would stay mapped as long as any of it is used."""
    return value.clone() if hasattr(value, "clone") else value


def load_weights(model: Any, checkpoint: Path) -> None:
    """Load what learns from a checkpoint's files into the pieces. Raises TrainError where some of it is not there."""
    from safetensors import safe_open

    names: dict[str, Path] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(str(file), "pt") as stream:
            names |= dict.fromkeys(stream.keys(), file)
    missing = []
    for name, weight in shards.learning(model):
        if name not in names:
            missing.append(name)
            continue
        with safe_open(str(names[name]), "pt") as stream:
            shards.fill(weight, stream.get_tensor(name))
    if missing:
        raise TrainError(f"{checkpoint.name} lacks {len(missing)} weights, {missing[0]} for one")
