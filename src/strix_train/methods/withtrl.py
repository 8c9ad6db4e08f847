"""What the methods on TRL's trainers have in common: rows that are tokens already, and a trainer that takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from strix_train.methods import Job, Outcome
from strix_train.methods.loop import Proof, Setup, Wrap, carry_out, one_device
from strix_train.methods.ready import Ready, arguments


@dataclass(slots=True)
class Trainer:
    """A trainer of TRL. `base` and `config`: its classes; `wishes`: what its config is told beside the schedule.

    `more`: what the trainer itself is given; `after`: called with it when it is built. `own_order`: it
    says itself in what order the rows come.
    """

    base: Any
    config: Any
    wishes: dict[str, Any]
    rows: Any
    evaluation: Any
    proof: Proof
    more: dict[str, Any] = field(default_factory=dict)
    after: Callable[[Any], None] = lambda trainer: None
    asks: bool = True
    own_order: bool = False


def learn(job: Job, made: Ready, steps: int, how: Trainer) -> Outcome:
    """Train, save the result, and ask the questions before and after. Raises TrainError and InputError."""
    learning = next(weight.dtype for weight in made.model.parameters() if weight.requires_grad)
    made.facts |= {"rows": len(how.rows), "steps": steps}

    def build(wrap: Wrap) -> Any:
        config = how.config(**{**arguments(job, steps), **job.backend.recomputation(job.wish), **how.wishes})
        trainer = wrap(_prepared(how.base))(
            model=made.model,
            args=one_device(job, config),
            train_dataset=how.rows,
            eval_dataset=how.evaluation,
            processing_class=made.text.tokenizer,
            **how.more,
        )
        _learn_in(made.model, learning)
        how.after(trainer)
        return trainer

    def evaluate(trainer: Any) -> float:
        return float(trainer.evaluate()["eval_loss"])

    setup = Setup(
        made.model,
        made.tokenizer,
        steps,
        how.proof,
        build,
        evaluate if how.evaluation is not None else None,
        made.facts,
        asks=how.asks,
        shuffled=None if how.own_order else len(how.rows),
    )
    return carry_out(job, setup)


def _learn_in(model: Any, dtype: Any) -> None:
    """Hold what learns in `dtype` again: TRL puts it into bf16 beside a quantized model, and small steps get lost."""
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(dtype)


def _prepared(base: Any) -> Any:
    """Return the trainer class for rows that need no preparation."""

    class Prepared(base):  # type: ignore[misc]
        """TRL's trainer for rows that are tokens already."""

        def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
            return dataset

    return Prepared
