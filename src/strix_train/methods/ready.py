"""What every method does before its trainer is built: load, adapt, count steps, spell every hyperparameter out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from strix_train.answers import stop_tokens
from strix_train.distributed import strategy
from strix_train.errors import InputError, Problem, TrainError, nearest
from strix_train.methods import Job
from strix_train.recipe.adapter import LowRank
from strix_train.tokenizer import Adapted

# transformers marks a model that it quantized.
_QUANTIZED = {"qlora": "is_loaded_in_4bit", "lora8bit": "is_loaded_in_8bit"}


@dataclass(slots=True)
class Ready:
    """A model and its tokenizer. `facts` go into report.json."""

    model: Any
    tokenizer: Any
    text: Adapted
    facts: dict[str, Any]

    @property
    def pad(self) -> int:
        """The token that fills rows up."""
        return self.text.pad


def pads(ready: Ready) -> None:
    """Give the tokenizer a token that fills rows up, for trainers that ask it: Llama 3 comes without one."""
    tokenizer = ready.text.tokenizer
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token


def load(job: Job) -> Ready:
    """Return the model, on its device, with the template that the recipe wants."""
    model, tokenizer = job.backend.load(job.wish)
    return with_template(job, model, tokenizer)


def with_template(job: Job, model: Any, tokenizer: Any) -> Ready:
    """Return a loaded model with the template that the recipe wants. Raises TrainError where it is not quantized."""
    kind = job.wish.adapter.kind
    if kind in _QUANTIZED and not getattr(model, _QUANTIZED[kind], False):
        # a loader that passes over the wish would take two or four times the memory, and nothing would say so
        raise TrainError(
            f"backend {job.backend.name} did not hold the model as adapter {kind} wants it on this device",
            cure="write backend: hf",
        )
    if job.plan.template.source:
        tokenizer.chat_template = job.plan.template.source
        getattr(tokenizer, "tokenizer", tokenizer).chat_template = job.plan.template.source
    return Ready(model, tokenizer, Adapted(tokenizer, stop_tokens(model, tokenizer)), {})


def adapt(job: Job, ready: Ready, **more: Any) -> None:
    """Make the model learn by its fresh adapter, or whole, and tell how much of it learns.

    `more`: what a backend's own `adapt` takes besides.
    """
    adapter = job.plan.loaded.recipe.adapter
    if isinstance(adapter, LowRank):
        _check_targets(job, ready.model, adapter)
    ready.model = job.backend.adapt(ready.model, adapter, job.wish, **more)
    trainable = sum(weight.numel() for weight in ready.model.parameters() if weight.requires_grad)
    if not trainable:
        raise TrainError("the adapter reaches no part of the model", cure="check adapter.targets")
    total = sum(weight.numel() for weight in ready.model.parameters())
    what = f"{adapter.kind} r={adapter.r}" if isinstance(adapter, LowRank) else f"full, {adapter.weights} weights"
    job.console.fact("adapter", f"{what}: {trainable:,} of {total:,} parameters learn")
    if job.backend.lean is not None:
        job.console.fact("layers", job.backend.lean.told)
    ready.facts |= {"trainable_parameters": trainable, "parameters": total}


def _check_targets(job: Job, model: Any, adapter: LowRank) -> None:
    """Refuse names of modules that the model does not have; peft passes over them while others match."""
    import torch

    if isinstance(adapter.targets, str):
        return
    linear = sorted({name.rpartition(".")[2] for name, it in model.named_modules() if isinstance(it, torch.nn.Linear)})
    every = ["." + name for name, _ in model.named_modules()]
    for index, name in enumerate(adapter.targets):
        if not any(module.endswith("." + name) for module in every):
            place = job.plan.loaded.place("adapter", "targets", index)
            raise InputError(Problem(f"the model has no module '{name}'", place, nearest(name, linear)))


def steps_of(job: Job, rows: int) -> int:
    """Return the number of optimizer steps, counted as the trainer counts them."""
    schedule = job.plan.loaded.recipe.schedule
    if schedule.steps is not None:
        return schedule.steps
    passes = math.ceil(rows / (schedule.rows * job.world))
    return max(1, math.ceil((schedule.epochs or 0) * math.ceil(passes / schedule.accumulation)))


def arguments(job: Job, steps: int) -> dict[str, Any]:
    """Return every hyperparameter, spelt out: each library's version has defaults of its own, and changes them."""
    recipe = job.plan.loaded.recipe
    schedule, every = recipe.schedule, recipe.checkpoints.every
    warmup = schedule.warmup if schedule.warmup >= 1 else schedule.warmup * steps
    return {
        "output_dir": str(job.folder.checkpoints),
        "per_device_train_batch_size": schedule.rows,
        "per_device_eval_batch_size": recipe.evaluation.batch or schedule.rows,
        "gradient_accumulation_steps": schedule.accumulation,
        "max_steps": steps,
        "learning_rate": schedule.learning_rate,
        "lr_scheduler_type": "constant_with_warmup" if schedule.scheduler == "constant" else schedule.scheduler,
        "warmup_steps": min(steps, math.ceil(warmup)),
        "optim": "adamw_torch_fused",
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "weight_decay": schedule.weight_decay,
        "max_grad_norm": schedule.max_grad_norm,
        "label_smoothing_factor": 0.0,
        "average_tokens_across_devices": True,
        "seed": schedule.seed,
        "data_seed": schedule.seed,
        "bf16": job.wish.precision == "bf16",
        "fp16": job.wish.precision == "fp16",
        "use_cpu": not job.device.is_gpu,
        "torch_compile": False,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "report_to": "none",
        "eval_strategy": "steps" if recipe.evaluation.every and job.plan.evaluation else "no",
        "eval_steps": recipe.evaluation.every or steps,
        "prediction_loss_only": True,
        "save_strategy": "steps" if every else "no",
        "save_steps": every or steps,
        "save_total_limit": None,
        "dataloader_num_workers": 0,
        "dataloader_drop_last": False,
        "dataloader_pin_memory": job.device.is_gpu,
        "remove_unused_columns": False,
        # a PyTorch with MPI would be preferred to Gloo, and MPI knows nothing of torchrun: one process a world
        "ddp_backend": "gloo" if job.world > 1 and not job.device.is_gpu else None,
        **strategy.arguments(job.shared),
    }


def reference(job: Job) -> Any:
    """Return the model as it was before training, where there is no adapter to switch off; else None."""
    if job.plan.loaded.recipe.adapter.kind != "full":
        return None
    model, _ = job.backend.load(job.wish)
    for weight in model.parameters():
        weight.requires_grad_(False)
    return model.eval()


def drop_reference(model: Any) -> None:
    """Take away the copy of a fresh adapter that TRL makes: without its adapter, the model is its own reference."""
    if "ref" in getattr(model, "peft_config", {}):
        model.delete_adapter("ref")
