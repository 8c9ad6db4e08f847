"""`schedule.batch: auto`: as many rows at a time as fit, of those that a step has anyway."""

from __future__ import annotations

from collections.abc import Sequence

from strix_train.errors import InputError, Problem
from strix_train.estimate import advice, configs, request
from strix_train.estimate.machines import Machine
from strix_train.estimate.memory import Backend
from strix_train.names import find_model
from strix_train.recipe.load import Loaded, load


def settings(
    loaded: Loaded,
    given: Sequence[str],
    machine: Machine,
    *,
    backend: Backend | None = None,
    longest: int | None = None,
) -> list[str]:
    """Return the settings that stand for `auto`, none where batch is a number. `given`: those that were given.

    schedule.accumulation then names the rows of a step, so that every device learns from the same ones. Raises
    InputError where the model's size is not known.
    """
    schedule = loaded.recipe.schedule
    if schedule.batch != "auto":
        return []
    place = loaded.place("schedule", "batch")
    try:
        model = find_model(loaded.recipe.model, loaded.path.parent, loaded.place("model"))
        shape, _ = configs.find(model, place)
    except InputError as error:
        problem = error.problems[0]
        what = f"auto needs to know how large the model is: {problem.message}"
        raise InputError(Problem(what, place, "write a number, as 2")) from None
    one = load(loaded.path, [*given, "schedule.batch=1"]).recipe
    wish = request.wish(one, shape, machine, backend=backend, longest=longest)
    least = 2 if one.method.kind == "kto" else 1
    rows = schedule.accumulation
    found = advice.largest_batch(wish, machine, rows, least)
    return [f"schedule.batch={found}", f"schedule.accumulation={rows // found}"]
