"""What a recipe may say and `train` cannot do yet: refused with its place before anything is read."""

from __future__ import annotations

from strix_train.errors import Problem
from strix_train.recipe.load import Loaded

METHODS = ("sft", "cpt", "dpo", "orpo", "kto", "reward")


def refusals(loaded: Loaded) -> list[Problem]:
    """Return a sentence for each wish that would not be met."""
    recipe = loaded.recipe
    found = []
    if recipe.method.kind not in METHODS:
        what = f"method {recipe.method.kind} is not trained by this version"
        found.append(Problem(what, loaded.place("method"), f"it trains {', '.join(METHODS)}"))
    if recipe.strategy.kind in ("fsdp", "deepspeed"):
        what = f"strategy {recipe.strategy.kind} is not started by this version"
        found.append(Problem(what, loaded.place("strategy"), "write strategy: auto, which is ddp under torchrun"))
    if recipe.export and recipe.method.kind == "reward":
        what = "a reward model says numbers and no words, so that there is nothing to export it to"
        found.append(Problem(what, loaded.place("export"), "remove it: the adapter is always written"))
    if recipe.method.kind == "kto" and recipe.schedule.batch < 2:
        what = f"schedule.batch is {recipe.schedule.batch}, and method kto compares the rows of a batch"
        found.append(Problem(what, loaded.place("schedule", "batch"), "write at least 2"))
    if recipe.data.packing and recipe.method.kind not in ("sft", "cpt"):
        what = f"rows of method {recipe.method.kind} are not packed"
        found.append(Problem(what, loaded.place("data", "packing"), "remove it"))
    return found
