"""Supervised fine-tuning: answers learned from rows that hold them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strix_train.answers import stop_tokens
from strix_train.batches import Collator, Proof
from strix_train.data.rows import Continuation, Conversation, Row
from strix_train.encode import Encoded, encoder
from strix_train.errors import InputError, Problem, TrainError, nearest
from strix_train.methods import Job, Outcome
from strix_train.methods.loop import Setup, Wrap, carry_out, one_device
from strix_train.recipe.adapter import LowRank
from strix_train.tokenizer import Adapted


def train(job: Job) -> Outcome:
    """Train, save the adapter, and ask the questions before and after. Raises TrainError and InputError."""
    recipe, console = job.plan.loaded.recipe, job.console
    model, tokenizer = job.backend.load(job.wish)
    text = Adapted(tokenizer, stop_tokens(model, tokenizer))
    rows = _encode(job, text, job.plan.train.rows, "rows")
    evaluation = _encode(job, text, job.plan.evaluation.rows, "eval rows") if job.plan.evaluation else []
    steps = _steps(job, len(rows))
    facts: dict[str, Any] = {"rows": len(rows), "steps": steps}
    _check_targets(job, model)
    adapter = recipe.adapter
    assert isinstance(adapter, LowRank)  # refusals
    model = job.backend.adapt(model, adapter, job.wish)
    trainable, total = _parameters(model)
    console.fact("adapter", f"{adapter.kind} r={adapter.r}: {trainable:,} of {total:,} parameters learn")
    facts |= {"trainable_parameters": trainable, "parameters": total}
    pad = text.tokenizer.pad_token_id

    def build(wrap: Wrap) -> Any:
        return wrap(job.backend.trainer_class())(
            model=model,
            args=one_device(job, job.backend.arguments(common_arguments(job, steps), job.wish)),
            train_dataset=_dataset(rows),
            eval_dataset=_dataset(evaluation) if evaluation else None,
            processing_class=tokenizer,
            data_collator=Collator(text.tokenizer.eos_token_id if pad is None else pad),
        )

    def evaluate(trainer: Any) -> float:
        return float(trainer.evaluate()["eval_loss"])

    proof = Proof(recipe.responses_only, text.tokenizer.decode)
    return carry_out(job, Setup(model, tokenizer, steps, proof, build, evaluate if evaluation else None, facts))


def _encode(job: Job, text: Adapted, rows: Sequence[Row], what: str) -> list[Encoded]:
    """Return the rows as tokens; those whose answer max_length cuts away entirely are left out, and told."""
    recipe = job.plan.loaded.recipe
    encode = encoder(
        text,
        template=recipe.data.template,
        responses_only=recipe.responses_only,
        max_length=recipe.schedule.max_length,
    )
    if recipe.data.template == "chat" and not text.has_template:
        raise InputError(
            Problem(
                "the model has no chat template", job.plan.loaded.place("data", "template"), "write template: plain"
            )
        )
    every = [encode(row) for row in rows if isinstance(row, (Conversation, Continuation))]
    kept = [row for row in every if row.learned]
    place = job.plan.loaded.place("schedule", "max_length")
    if not kept:
        longest = max(len(row.ids) for row in every)
        raise InputError(
            Problem(
                f"every row's answer lies beyond max_length ({recipe.schedule.max_length} tokens), so all labels are "
                "masked and nothing would be learned",
                place,
                f"the rows are at least {longest} tokens long; raise schedule.max_length",
            )
        )
    learned = sum(row.learned for row in kept)
    tokens = sum(len(row.ids) for row in kept)
    longest = max(len(row.ids) for row in kept)
    job.console.fact(
        what, f"{len(kept)}: {learned:,} of {tokens:,} tokens count in the loss; the longest row has {longest}"
    )
    lost, cut = len(every) - len(kept), sum(row.cut for row in kept)
    if lost:
        job.console.fact("warning", f"{lost} rows were left out: max_length cuts their whole answer away ({place})")
    if cut:
        job.console.fact("warning", f"{cut} rows lose a part of their answer to max_length ({place})")
    return kept


def _steps(job: Job, rows: int) -> int:
    """Return the number of optimizer steps, counted as the trainer counts them."""
    schedule = job.plan.loaded.recipe.schedule
    if schedule.steps is not None:
        return schedule.steps
    passes = math.ceil(rows / (schedule.batch * job.world))
    return max(1, math.ceil((schedule.epochs or 0) * math.ceil(passes / schedule.accumulation)))


def _check_targets(job: Job, model: Any) -> None:
    """Refuse names of modules that the model does not have; peft passes over them while others match."""
    import torch

    adapter = job.plan.loaded.recipe.adapter
    wanted = adapter.targets if isinstance(adapter, LowRank) else ""
    if isinstance(wanted, str):
        return
    linear = sorted({name.rpartition(".")[2] for name, it in model.named_modules() if isinstance(it, torch.nn.Linear)})
    every = ["." + name for name, _ in model.named_modules()]
    for index, name in enumerate(wanted):
        if not any(module.endswith("." + name) for module in every):
            place = job.plan.loaded.place("adapter", "targets", index)
            raise InputError(Problem(f"the model has no module '{name}'", place, nearest(name, linear)))


def _parameters(model: Any) -> tuple[int, int]:
    trainable = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    if not trainable:
        raise TrainError("the adapter reaches no part of the model", cure="check adapter.targets")
    return trainable, sum(weight.numel() for weight in model.parameters())


def _dataset(rows: Sequence[Encoded]) -> Any:
    from datasets import Dataset

    return Dataset.from_dict({"input_ids": [row.ids for row in rows], "labels": [row.labels for row in rows]})


def common_arguments(job: Job, steps: int) -> dict[str, Any]:
    """Return every hyperparameter, spelt out: each library's version has defaults of its own, and changes them."""
    recipe = job.plan.loaded.recipe
    schedule, every = recipe.schedule, recipe.checkpoints.every
    warmup = schedule.warmup if schedule.warmup >= 1 else schedule.warmup * steps
    return {
        "output_dir": str(job.folder.checkpoints),
        "per_device_train_batch_size": schedule.batch,
        "per_device_eval_batch_size": schedule.batch,
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
        "remove_unused_columns": True,
        # a PyTorch with MPI would be preferred to Gloo, and MPI knows nothing of torchrun: one process a world
        "ddp_backend": "gloo" if job.world > 1 and not job.device.is_gpu else None,
        "ddp_find_unused_parameters": False if job.world > 1 else None,
    }
