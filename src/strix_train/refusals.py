"""What a recipe may say and `train` cannot do yet: refused with its place before anything is read."""

from __future__ import annotations

import os
from importlib.util import find_spec

from strix_train.errors import Problem
from strix_train.recipe.load import Loaded
from strix_train.recipe.method import Grpo

IN_PIECES = ("sft", "cpt")
METHODS = ("sft", "cpt", "dpo", "orpo", "kto", "reward", "grpo")


def refusals(loaded: Loaded) -> list[Problem]:
    """Return a sentence for each wish that would not be met."""
    recipe = loaded.recipe
    found = []
    if recipe.method.kind not in METHODS:
        what = f"method {recipe.method.kind} is not trained by this version"
        found.append(Problem(what, loaded.place("method"), f"it trains {', '.join(METHODS)}"))
    if recipe.strategy.kind in ("fsdp", "deepspeed") and recipe.method.kind not in IN_PIECES:
        what = f"strategy {recipe.strategy.kind} does not train method {recipe.method.kind}"
        found.append(
            Problem(what, loaded.place("strategy"), f"it trains {' and '.join(IN_PIECES)}; write ddp, or auto")
        )
    if recipe.strategy.kind == "deepspeed" and find_spec("deepspeed") is None:
        what = "strategy deepspeed needs the package deepspeed, which is not here"
        found.append(Problem(what, loaded.place("strategy"), "pip install 'strix-finetune[deepspeed]', or write fsdp"))
    if recipe.export and recipe.method.kind == "reward":
        what = "a reward model says numbers and no words, so that there is nothing to export it to"
        found.append(Problem(what, loaded.place("export"), "remove it: the adapter is always written"))
    elif recipe.export and recipe.adapter.kind == "full" and "adapter" in recipe.export.to:
        what = "adapter full trains every weight of the model, so that there is no adapter to export"
        found.append(Problem(what, loaded.place("export"), "write merged in place of adapter"))
    if recipe.method.kind == "kto" and recipe.schedule.rows < 2:
        what = f"schedule.batch is {recipe.schedule.rows}, and method kto compares the rows of a batch"
        found.append(Problem(what, loaded.place("schedule", "batch"), "write at least 2"))
    if isinstance(recipe.method, Grpo):
        found += _answers(loaded, recipe.method)
    if recipe.data.packing and recipe.method.kind not in ("sft", "cpt"):
        what = f"rows of method {recipe.method.kind} are not packed"
        found.append(Problem(what, loaded.place("data", "packing"), "remove it"))
    return found


def _answers(loaded: Loaded, wish: Grpo) -> list[Problem]:
    """Return what is wrong with how many answers a step writes, and how long they may be."""
    schedule = loaded.recipe.schedule
    found = []
    if wish.max_new_tokens >= schedule.max_length:
        what = f"answers of {wish.max_new_tokens} tokens leave no room for a prompt in {schedule.max_length}"
        found.append(Problem(what, loaded.place("method", "max_new_tokens"), "raise schedule.max_length"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rows = schedule.rows * schedule.accumulation * world
    if rows % wish.generations:
        shared = f" × {world} processes" if world > 1 else ""
        what = (
            f"a step has {schedule.rows} × {schedule.accumulation}{shared} rows, which is no multiple of the "
            f"{wish.generations} answers to each prompt"
        )
        found.append(Problem(what, loaded.place("method", "generations"), "change schedule.accumulation"))
    return found
