"""How the rows of a step are divided, so that a run that goes on with more or fewer processes stays the same run."""

from __future__ import annotations

from dataclasses import replace

from strix_train.console import Console
from strix_train.distributed.together import Disagreement, Ranks
from strix_train.errors import Problem
from strix_train.plan import Plan


def divide(rows: int, world: int, batch: int) -> tuple[int, int] | None:
    """Return (rows of a pass, passes of a step) for each of `world` processes that have `rows` a step together.

    A pass has `batch` rows at most, since that many fit. None where the rows are no multiple of the processes.
    """
    if rows % world:
        return None
    mine = rows // world
    fitting = next(size for size in range(min(batch, mine), 0, -1) if mine % size == 0)
    return fitting, mine // fitting


def adapted(plan: Plan, rows: int, world: int) -> Plan:
    """Return a plan whose steps have `rows` rows over `world` processes. Raises Disagreement where that cannot be."""
    schedule = plan.loaded.recipe.schedule
    if schedule.rows * schedule.accumulation * world == rows:
        return plan
    found = divide(rows, world, schedule.rows)
    if found is None:
        fitting = [str(number) for number in range(1, min(rows, 64) + 1) if rows % number == 0]
        what = f"a step of this run has {rows} rows, which {world} processes cannot share evenly"
        raise Disagreement(Problem(what, cure=f"go on with one of these many: {', '.join(fitting)}"))
    batch, accumulation = found
    changed = schedule.model_copy(update={"batch": batch, "accumulation": accumulation})
    recipe = plan.loaded.recipe.model_copy(update={"schedule": changed})
    return replace(plan, loaded=replace(plan.loaded, recipe=recipe))


def settled(plan: Plan, ranks: Ranks, rows: int, console: Console) -> Plan:
    """Return the plan as this many processes carry it out. `rows`: of a step before, as process 0 knows; 0 for new."""
    before = int(ranks.exchange("rows", {"rows": rows})[0]["rows"])
    if not before:
        return plan
    found = adapted(plan, before, ranks.world)
    schedule, was = found.loaded.recipe.schedule, plan.loaded.recipe.schedule
    if found is not plan:
        console.fact(
            "processes",
            f"{ranks.world} now: {schedule.accumulation} × {schedule.rows} rows each instead of "
            f"{was.accumulation} × {was.rows}, so that a step keeps its {before} rows",
        )
    return found
