"""A reward model: a number for a conversation, higher where the chosen answer stands at its end."""

from __future__ import annotations

from typing import Any

from strix_train.backends.hf import PlainBackend
from strix_train.data.mix import Rows
from strix_train.data.rows import Preference
from strix_train.methods import Job, Outcome, ready, withtrl
from strix_train.proofs import PairProof
from strix_train.recipe.method import Reward
from strix_train.tokens import Column, Encoder, dataset


def train(job: Job) -> Outcome:
    """Train and save the result; it gives numbers, not words, so nothing is asked. Raises TrainError and InputError."""
    from trl import RewardConfig, RewardTrainer
    from trl.trainer.reward_trainer import suppress_seqcls_warning

    plan, wish = job.plan, job.plan.loaded.recipe.method
    assert isinstance(wish, Reward)
    backend = job.backend
    assert isinstance(backend, PlainBackend)  # backends.choose
    with suppress_seqcls_warning():  # that the head is new is what is wanted
        made = ready.with_template(job, *backend.load_scorer(job.wish))
    ready.pads(made)
    encoder = Encoder(job, made.text)
    rows = _rows(encoder, plan.train, "pairs")
    evaluation = _rows(encoder, plan.evaluation, "eval pairs") if plan.evaluation else None
    ready.adapt(job, made, scores=True)
    trainer = withtrl.Trainer(
        base=RewardTrainer,
        config=RewardConfig,
        wishes={"max_length": None, "disable_dropout": True, "center_rewards_coefficient": wish.center or None},
        rows=rows,
        evaluation=evaluation,
        proof=PairProof(made.text.tokenizer.decode),
        asks=False,
    )
    return withtrl.learn(job, made, ready.steps_of(job, len(rows)), trainer)


def _rows(encoder: Encoder, rows: Rows, what: str) -> Any:
    """Return pairs as whole rows, each with its answer; a pair with a row beyond max_length is left out."""
    made = {"chosen_ids": Column(), "rejected_ids": Column()}
    lost = 0
    for row in rows:
        assert isinstance(row, Preference)  # the formats of a method decide that
        chosen, rejected = encoder.one(row.chosen), encoder.one(row.rejected)
        if chosen.cut or rejected.cut:
            lost += 1
            continue
        made["chosen_ids"].append(chosen.ids)
        made["rejected_ids"].append(rejected.ids)
    encoder.whole(what, len(made["chosen_ids"]), lost)
    return dataset(made)
