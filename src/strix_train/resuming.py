"""Whether a run may go on where it stopped: the same recipe, data and backend, by what its folder holds."""

from __future__ import annotations

from typing import Any

from strix_train import checkpoints, same
from strix_train.console import Console
from strix_train.errors import InputError, Problem
from strix_train.plan import Plan
from strix_train.runfolder import RunFolder


def same_run(folder: RunFolder, plan: Plan) -> None:
    """Check that a run goes on with the recipe and the data that it began with."""
    from strix_train.recipe import places

    if not (folder.path / "recipe.resolved.yaml").is_file():
        if {path.name for path in folder.path.iterdir()} <= {
            folder.log.name,
            ".probe",
            ".recipe.resolved.yaml.partial",
        }:
            return  # killed before its first word was written
        raise InputError(Problem(f"{folder.path} is not a run folder", cure="leave --resume out to begin a run"))
    before = folder.read_json("versions.json") or {}
    differing = [
        *same.differences(_today(places.read(folder.path / "recipe.resolved.yaml").value), plan.resolved()),
        *same.other_inputs(before.get("inputs") or {}, plan.inputs()),
    ]
    if differing:
        raise InputError(
            Problem(
                f"the recipe is not the one that {folder.path} began with: {', '.join(differing)}",
                cure="resume with the same recipe and data, or leave --resume out",
            )
        )


def _today(value: Any) -> dict[str, Any]:
    """Return a recipe that an earlier version resolved, with the defaults of keys that it did not know."""
    from pydantic import ValidationError

    from strix_train.recipe.schema import Recipe

    try:
        return Recipe.model_validate(value).model_dump(mode="json")
    except ValidationError:
        return value if isinstance(value, dict) else {}


def compare(console: Console, folder: RunFolder, now: dict[str, Any]) -> None:
    """Refuse to go on with another backend, and warn of other versions: the end may then differ in its last bits."""
    before = folder.read_json("versions.json") or {}
    if before.get("backend") not in (None, now["backend"]):
        raise InputError(
            Problem(
                f"the run in {folder.path} was trained with backend {before['backend']} and would go on with "
                f"{now['backend']}",
                cure=f"write backend: {before['backend']}, or leave --resume out",
            )
        )
    changed = same.other_versions(before, now)
    if changed:
        console.fact("warning", f"the run began elsewhere, so its last bits may differ: {', '.join(changed)}")


def rows_of_a_step(folder: RunFolder, plan: Plan) -> int:
    """Return the rows that all processes together had in a step of a run; 0 where nothing was kept of it."""
    kept = folder.read_json("versions.json") or {}
    if isinstance(kept.get("rows_per_step"), int):
        return int(kept["rows_per_step"])
    found = checkpoints.whole(folder.checkpoints)
    schedule = plan.loaded.recipe.schedule
    return int(checkpoints.manifest(found[-1]).get("world", 1)) * schedule.rows * schedule.accumulation if found else 0
