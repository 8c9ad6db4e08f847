"""The part of a recipe that says how the model learns from the rows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from strix_train.recipe.base import Finite, Name, Strict, Text, as_list, widened


class Sft(Strict):
    """Supervised fine-tuning: answers are learned from rows that hold them."""

    kind: Literal["sft"]


class Cpt(Strict):
    """Continued pretraining: every token of plain text is learned."""

    kind: Literal["cpt"]


class Dpo(Strict):
    """Direct preference optimization: the chosen answer gets likelier than the rejected one."""

    kind: Literal["dpo"]
    beta: Finite = Field(default=0.1, gt=0, le=100, description="How closely the model stays to where it began.")
    loss: Literal["sigmoid", "hinge", "ipo", "robust", "apo_zero", "apo_down"] = "sigmoid"
    label_smoothing: Finite = Field(default=0.0, ge=0, lt=0.5, description="Share of labels that may be wrong.")


class Orpo(Strict):
    """Odds ratio preference optimization: chosen rows are learned whole, and preferred; without a reference model."""

    kind: Literal["orpo"]
    beta: Finite = Field(default=0.1, gt=0, le=100, description="Weight of the preference beside the answer's loss.")


class Kto(Strict):
    """Kahneman-Tversky optimization: answers that are marked good or bad, without pairs."""

    kind: Literal["kto"]
    beta: Finite = Field(default=0.1, gt=0, le=100, description="How closely the model stays to where it began.")
    desirable_weight: Finite = Field(default=1.0, gt=0, le=100)
    undesirable_weight: Finite = Field(default=1.0, gt=0, le=100)


class Reward(Strict):
    """A reward model: a number for an answer, higher for the chosen one."""

    kind: Literal["reward"]
    center: Finite = Field(default=0.0, ge=0, le=10, description="Pull of the mean reward towards zero.")


class Match(Strict):
    """1 where the answer holds the row's expected words, else 0."""

    kind: Literal["match"]
    column: Text = Field(default="answer", description="The row's key that holds what is expected.")
    weight: Finite = Field(default=1.0, ge=-100, le=100)


class Number(Strict):
    """1 where the last number of the answer is the row's expected number, else 0."""

    kind: Literal["number"]
    column: Text = Field(default="answer", description="The row's key; its last number is what is expected.")
    weight: Finite = Field(default=1.0, ge=-100, le=100)


class Pattern(Strict):
    """1 where the regular expression is found in the answer, else 0."""

    kind: Literal["pattern"]
    pattern: Text
    weight: Finite = Field(default=1.0, ge=-100, le=100)


class Length(Strict):
    """1 up to `most` characters, falling to 0 at twice as many."""

    kind: Literal["length"]
    most: int = Field(ge=1)
    weight: Finite = Field(default=1.0, ge=-100, le=100)


class Python(Strict):
    """Your own function: `name(prompt, answer, row) -> float`, in a file beside the recipe."""

    kind: Literal["python"]
    file: Name
    name: Text = "reward"
    weight: Finite = Field(default=1.0, ge=-100, le=100)


def _reward(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


Rewarding = Annotated[
    Annotated[Match | Number | Pattern | Length | Python, Field(discriminator="kind")],
    BeforeValidator(_reward, json_schema_input_type=str | Match | Number | Pattern | Length | Python),
]


class Grpo(Strict):
    """Group relative policy optimization: several answers to a prompt, rewarded against each other."""

    kind: Literal["grpo"]
    rewards: Annotated[list[Rewarding], BeforeValidator(as_list)] = Field(
        min_length=1, description="What an answer is worth: the weighted sum of these."
    )
    generations: int = Field(default=8, ge=2, le=512, description="Answers to each prompt.")
    max_new_tokens: int = Field(default=256, ge=1, le=131072, description="Length of an answer, in tokens.")
    temperature: Finite = Field(default=1.0, gt=0, le=5)
    beta: Finite = Field(default=0.0, ge=0, le=100, description="How closely the model stays to where it began.")
    loss: Literal["dapo", "grpo", "dr_grpo", "bnpo"] = "dapo"


MethodKind = Literal["sft", "cpt", "dpo", "orpo", "kto", "grpo", "reward"]
Method = Annotated[
    Annotated[Sft | Cpt | Dpo | Orpo | Kto | Grpo | Reward, Field(discriminator="kind")],
    BeforeValidator(
        widened("method"), json_schema_input_type=MethodKind | Sft | Cpt | Dpo | Orpo | Kto | Grpo | Reward
    ),
]
