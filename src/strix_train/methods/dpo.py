"""Direct preference optimization: the chosen answer gets likelier than the rejected one."""

from __future__ import annotations

from strix_train.backends import logprobs
from strix_train.methods import Job, Outcome, ready, withtrl
from strix_train.proofs import MaskProof
from strix_train.recipe.method import Dpo
from strix_train.tokens import Encoder, dataset


def train(job: Job) -> Outcome:
    """Train, save the result, and ask the questions before and after. Raises TrainError and InputError."""
    from trl import DPOConfig, DPOTrainer

    logprobs.install(gpu=job.device.is_gpu)
    plan, wish = job.plan, job.plan.loaded.recipe.method
    assert isinstance(wish, Dpo)
    made = ready.load(job)
    encoder = Encoder(job, made.text)
    rows = dataset(encoder.pairs(plan.train, "pairs"))
    evaluation = dataset(encoder.pairs(plan.evaluation, "eval pairs")) if plan.evaluation else None
    reference = ready.reference(job)
    ready.adapt(job, made)
    trainer = withtrl.Trainer(
        base=DPOTrainer,
        config=DPOConfig,
        wishes={
            "beta": wish.beta,
            "loss_type": [wish.loss],
            "label_smoothing": wish.label_smoothing,
            "max_length": None,
            "disable_dropout": True,
            "precompute_ref_log_probs": False,
        },
        rows=rows,
        evaluation=evaluation,
        proof=MaskProof(made.text.tokenizer.decode, ("chosen", "rejected")),
        more={"ref_model": reference},
        after=lambda trainer: ready.drop_reference(made.model),
    )
    return withtrl.learn(job, made, ready.steps_of(job, len(rows)), trainer)
