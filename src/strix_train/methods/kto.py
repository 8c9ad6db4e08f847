"""Kahneman-Tversky optimization: answers that are marked good or bad, without pairs."""

from __future__ import annotations

import random
from array import array
from typing import Any

from strix_train.backends import logprobs
from strix_train.data.mix import Rows
from strix_train.methods import Job, Outcome, ready, withtrl
from strix_train.proofs import MaskProof
from strix_train.recipe.method import Kto
from strix_train.tokens import Column, Encoder, dataset


def train(job: Job) -> Outcome:
    """Train, save the result, and ask the questions before and after. Raises TrainError and InputError."""
    from trl import KTOConfig, KTOTrainer

    logprobs.install(gpu=job.device.is_gpu)
    plan, recipe = job.plan, job.plan.loaded.recipe
    wish = recipe.method
    assert isinstance(wish, Kto)
    made = ready.load(job)
    encoder = Encoder(job, made.text)
    rows = _rows(job, encoder, plan.train, "rows", recipe.schedule.rows)
    evaluation = None
    if plan.evaluation:
        evaluation = _rows(job, encoder, plan.evaluation, "eval rows", recipe.evaluation.batch or recipe.schedule.rows)
    reference = ready.reference(job)
    ready.adapt(job, made)
    trainer = withtrl.Trainer(
        base=KTOTrainer,
        config=KTOConfig,
        wishes={
            "beta": wish.beta,
            "loss_type": "kto",
            "desirable_weight": wish.desirable_weight,
            "undesirable_weight": wish.undesirable_weight,
            "max_length": None,
            "disable_dropout": True,
            "precompute_ref_log_probs": False,
            # each row is paired with an answer of its own batch, so the order is made here
            "train_sampling_strategy": "sequential",
        },
        rows=rows,
        evaluation=evaluation,
        proof=MaskProof(made.text.tokenizer.decode),
        more={"ref_model": reference},
        after=lambda trainer: ready.drop_reference(made.model),
        own_order=True,
    )
    return withtrl.learn(job, made, ready.steps_of(job, len(rows)), trainer)


def _rows(job: Job, encoder: Encoder, rows: Rows, what: str, batch: int) -> Any:
    """Return marked rows in a shuffled order, each with the answer of another row of its batch."""
    columns, good = encoder.marked(rows, what)
    order = list(range(len(good)))
    random.Random(job.plan.loaded.recipe.schedule.seed).shuffle(order)
    made = {name: Column() for name in columns}
    for index in order:
        for name, column in made.items():
            column.append(columns[name][index])
    answers = made["completion_ids"]
    made["KL_completion_ids"] = Column()
    for index in others(len(order), batch):
        made["KL_completion_ids"].append(answers[index] if index >= 0 else array("i"))
    return dataset(made, {"label": [good[index] for index in order]})


def others(rows: int, batch: int) -> list[int]:
    """Return for each row the number of another row of its batch: the one before it, and for the first the last.

    A last batch of one row takes the row before it; a set of one row has no other.
    """
    found = []
    for start in range(0, rows, batch):
        end = min(rows, start + batch)
        found += [end - 1 if end - start > 1 else start - 1, *range(start, end - 1)]
    return found
