"""The names of a recipe's keys: the nearest one to a mistyped word, and ours for a library's."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel

from strix_train.recipe.schema import Recipe

# What the libraries, and the recipes of other front ends, call it -> what it is called here.
RENAMED: dict[str, str] = {
    "max_seq_length": "schedule.max_length",
    "max_seq_len": "schedule.max_length",
    "sequence_len": "schedule.max_length",
    "cutoff_len": "schedule.max_length",
    "max_steps": "schedule.steps",
    "num_train_epochs": "schedule.epochs",
    "num_epochs": "schedule.epochs",
    "per_device_train_batch_size": "schedule.batch",
    "micro_batch_size": "schedule.batch",
    "batch_size": "schedule.batch",
    "gradient_accumulation_steps": "schedule.accumulation",
    "grad_accum": "schedule.accumulation",
    "lr": "schedule.learning_rate",
    "lr_scheduler_type": "schedule.scheduler",
    "lr_scheduler": "schedule.scheduler",
    "warmup_steps": "schedule.warmup",
    "warmup_ratio": "schedule.warmup",
    "random_state": "schedule.seed",
    "max_norm": "schedule.max_grad_norm",
    "model_name": "model",
    "model_name_or_path": "model",
    "base_model": "model",
    "dataset": "data.train",
    "datasets": "data.train",
    "dataset_name": "data.train",
    "train_file": "data.train",
    "validation_file": "data.eval",
    "eval_dataset": "data.eval",
    "dataset_format": "data.format",
    "lora_r": "adapter.r",
    "lora_rank": "adapter.r",
    "rank": "adapter.r",
    "lora_alpha": "adapter.alpha",
    "lora_dropout": "adapter.dropout",
    "target_modules": "adapter.targets",
    "lora_target_modules": "adapter.targets",
    "output_dir": "output",
    "save_steps": "checkpoints.every",
    "save_total_limit": "checkpoints.keep",
    "train_on_responses_only": "responses_only",
    "assistant_only_loss": "responses_only",
    "completion_only_loss": "responses_only",
    "train_on_inputs": "responses_only",
    "gradient_checkpointing": "recompute",
    "use_gradient_checkpointing": "recompute",
    "bf16": "precision",
    "fp16": "precision",
    "dtype": "precision",
    "torch_dtype": "precision",
}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _models(part)


def known_keys(model: type[BaseModel] = Recipe, above: str = "") -> tuple[str, ...]:
    """Return every key of a recipe with its section: 'schedule.steps', 'model', …"""
    keys: list[str] = []
    for name, info in model.model_fields.items():
        keys.append(above + name)
        for inner in _models(info.annotation):
            keys.extend(known_keys(inner, f"{above}{name}."))
    return tuple(dict.fromkeys(keys))


def cure_unknown(section: str, word: str) -> str:
    """Return what to do about the unknown key `word` in `section` ('' is the top level)."""
    ours = RENAMED.get(word)
    if ours:
        return f"it is called '{ours}' here"
    keys = known_keys()
    prefix = f"{section}." if section else ""
    here = [key[len(prefix) :] for key in keys if key.startswith(prefix) and "." not in key[len(prefix) :]]
    close = get_close_matches(word, here, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{prefix}{close[0]}'?"
    by_last = {key.rsplit(".", 1)[-1]: key for key in keys if not key.startswith("questions.ask.")}
    if word in by_last:
        return f"it belongs in another section: '{by_last[word]}'"
    close = get_close_matches(word, [*by_last, *RENAMED], n=1, cutoff=0.7)
    if close:
        return f"did you mean '{by_last.get(close[0]) or RENAMED[close[0]]}'?"
    return f"known here: {', '.join(sorted(here))}"
