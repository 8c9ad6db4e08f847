"""DeepSpeed's ZeRO, by the trainer of transformers: gradients and optimizer are shared (2), or the weights too (3).

Nothing of it is compiled: the optimizer is torch's. Its checkpoints are pieces, one a process, that only as many
processes can go on from.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from strix_train.errors import TrainError

# DeepSpeed prints a line every so many steps.
_NEVER = 10**9


def config(stage: int) -> dict[str, Any]:
    """Return DeepSpeed's configuration; `auto` is filled in by transformers, from the trainer's own arguments."""
    shared: dict[str, Any] = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
    if stage == 3:
        sizes = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
        shared |= dict.fromkeys(sizes, "auto") | {"stage3_gather_16bit_weights_on_model_save": True}
    automatic = (
        "gradient_accumulation_steps",
        "gradient_clipping",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
    )
    return {
        "zero_optimization": shared,
        "bf16": {"enabled": "auto"},
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": _NEVER,
        **dict.fromkeys(automatic, "auto"),
    }


def prepare(model: Any) -> None:
    """Leave the loss to the model's own output layer, which holds its weight only while it computes."""
    # on a CPU it would compile a way through shared memory, for minutes, and does without it as well
    import_module("deepspeed.comm.torch").__dict__["build_shm_op"] = lambda: None
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    usual = getattr(inner, "loss_function", None)
    if usual is not None:
        inner.loss_function = lambda *args, **kwargs: usual(*args, **kwargs)


def gathered(trainer: Any, *, stage: int, keep: bool) -> dict[str, Any]:
    """Return what belongs into a result, in memory; all processes must ask, and only where `keep` is it kept."""
    model = trainer.model
    adapter = hasattr(model, "peft_config")
    if stage == 3:
        state = trainer.model_wrapped._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=adapter) or {}
    else:
        state = model.state_dict()
    if not keep:
        return {}
    return {name: value.detach().cpu() for name, value in state.items()}


def complete(folder: Path, world: int) -> None:
    """Raise TrainError where the pieces of the other processes did not come into this machine's folder."""
    found = len(list(folder.rglob("*_optim_states.pt")))
    if found < world:
        raise TrainError(
            f"{found} of {world} pieces of the checkpoint lie in {folder.parent}: each machine wrote its own",
            cure="put --run-dir into a folder that all machines share, or write strategy: fsdp",
        )
