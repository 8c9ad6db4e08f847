"""The part of a recipe that says how a run is watched while it lasts: samples of what it answers, and its guard."""

from __future__ import annotations

from pydantic import Field, model_validator

from strix_train.recipe.base import Finite, Strict, Text


class Sample(Strict):
    """Something to ask while training goes on; nothing in particular is expected."""

    prompt: Text
    system: Text | None = None


class Samples(Strict):
    """What the model answers while it learns, greedily: under `ask`, or else the recipe's questions."""

    every: int = Field(default=50, ge=1, description="Optimizer steps between two rounds.")
    ask: list[Sample] | None = Field(default=None, min_length=1, max_length=64)
    max_new_tokens: int = Field(default=64, ge=1, le=4096)


class Guard(Strict):
    """When a run stops by itself, at its last good checkpoint. Numbers that are not finite always stop it.

    A spike: `patience` steps in a row whose loss is above `spike` times the median of the `window` steps before (and
    at least 1 above it; 4 above it is always enough).
    """

    spike: Finite = Field(default=2.0, ge=0, description="0: only numbers that are not finite stop the run.")
    patience: int = Field(default=5, ge=1, le=1000)
    window: int = Field(default=20, ge=10, le=10000, description="Steps that tell what is usual.")

    @model_validator(mode="after")
    def _no_trap(self) -> Guard:
        if 0 < self.spike <= 1:
            raise ValueError("'spike' is a multiple of the usual loss; write more than 1, or 0 for none")
        return self
