"""Supervised fine-tuning: answers learned from rows that hold them."""

from __future__ import annotations

from typing import Any

from strix_train.batches import Collator, Proof
from strix_train.distributed import evenly
from strix_train.methods import Job, Outcome, ready
from strix_train.methods.loop import Setup, Wrap, carry_out, one_device
from strix_train.packing import see_only_themselves
from strix_train.tokens import Column, Encoder, dataset, packed


def train(job: Job) -> Outcome:
    """Train, save the adapter, and ask the questions before and after. Raises TrainError and InputError."""
    made = ready.load(job)
    encoder = Encoder(job, made.text)
    rows = encoder.answers(job.plan.train, "rows")
    evaluation = encoder.answers(job.plan.evaluation, "eval rows") if job.plan.evaluation else None
    return learn(job, made, rows, evaluation, responses_only=job.plan.loaded.recipe.responses_only)


def learn(
    job: Job,
    made: ready.Ready,
    rows: dict[str, Column],
    evaluation: dict[str, Column] | None,
    *,
    responses_only: bool,
) -> Outcome:
    """Train on columns input_ids and labels, packed where the recipe wants it."""
    recipe = job.plan.loaded.recipe
    number = len(rows["input_ids"])
    made.facts["rows"] = number
    if recipe.data.packing and recipe.method.kind == "sft":
        see_only_themselves(job, made.model, rows)
        rows = packed(rows, recipe.schedule.max_length)
        made.facts["bins"] = len(rows["input_ids"])
        job.console.fact("packing", f"{number} rows in {len(rows['input_ids'])} of {recipe.schedule.max_length} tokens")
    kept = len(rows["input_ids"])
    steps = ready.steps_of(job, kept)
    made.facts["steps"] = steps
    ready.adapt(job, made)
    collator = Collator(made.pad, flat=job.backend.name == "unsloth")

    def build(wrap: Wrap) -> Any:
        return wrap(job.backend.trainer_class())(
            model=made.model,
            args=one_device(job, job.backend.arguments(ready.arguments(job, steps), job.wish)),
            train_dataset=dataset(evenly.filled(job, rows, made.pad)),
            eval_dataset=dataset(evaluation) if evaluation else None,
            processing_class=made.tokenizer,
            data_collator=collator,
        )

    def evaluate(trainer: Any) -> float:
        return float(trainer.evaluate()["eval_loss"])

    proof = Proof(responses_only, made.text.tokenizer.decode)
    held = evaluate if evaluation else None
    setup = Setup(made.model, made.tokenizer, steps, proof, build, held, made.facts, shuffled=kept)
    return carry_out(job, setup)
