"""Odds ratio preference optimization: answers and preferences at once, without a reference model."""

from __future__ import annotations

import warnings
from typing import Any

from strix_train.encode import IGNORED
from strix_train.methods import Job, Outcome, ready, withtrl
from strix_train.proofs import OrpoProof
from strix_train.recipe.method import Orpo
from strix_train.tokens import Column, Encoder, dataset


def train(job: Job) -> Outcome:
    """Train, save the result, and ask the questions before and after. Raises TrainError and InputError."""
    # TRL keeps this trainer among those that may change with any version; ours is pinned
    warnings.filterwarnings("ignore", message=".*experimental.*")
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    plan, wish = job.plan, job.plan.loaded.recipe.method
    assert isinstance(wish, Orpo)
    made = ready.load(job)
    ready.pads(made)
    encoder = Encoder(job, made.text)
    rows = _rows(encoder.pairs(plan.train, "pairs"))
    evaluation = _rows(encoder.pairs(plan.evaluation, "eval pairs")) if plan.evaluation else None
    ready.adapt(job, made)
    job.console.fact("loss", "the chosen rows count whole, their prompts too, and the preference beside them")

    class Prepared(ORPOTrainer):  # type: ignore[misc]
        """TRL's trainer for rows that are tokens already."""

        def tokenize_row(self, feature: dict[str, Any], model: Any = None) -> dict[str, Any]:
            return feature

    trainer = withtrl.Trainer(
        base=Prepared,
        config=ORPOConfig,
        wishes={
            "beta": wish.beta,
            "max_length": plan.loaded.recipe.schedule.max_length,
            "disable_dropout": True,
            "padding_value": made.pad,
        },
        rows=rows,
        evaluation=evaluation,
        proof=OrpoProof(made.text.tokenizer.decode),
    )
    return withtrl.learn(job, made, ready.steps_of(job, len(rows)), trainer)


def _rows(pairs: dict[str, Column]) -> Any:
    """Return pairs in the columns of TRL's trainer: prompt, and prompt with each answer, with masks and labels."""
    made: dict[str, Column] = {}
    for which in ("chosen", "rejected"):
        ids, mask, labels = Column(), Column(), Column()
        for index in range(len(pairs["prompt_ids"])):
            prompt, answer = pairs["prompt_ids"][index], pairs[f"{which}_ids"][index]
            ids.append([*prompt, *answer])
            mask.append([1] * (len(prompt) + len(answer)))
            labels.append([*[IGNORED] * len(prompt), *answer])
        made |= {f"{which}_input_ids": ids, f"{which}_attention_mask": mask, f"{which}_labels": labels}
    mask = Column()
    for length in pairs["prompt_ids"].lengths():
        mask.append([1] * length)
    return dataset({**made, "prompt_input_ids": pairs["prompt_ids"], "prompt_attention_mask": mask})
