"""A recipe file, with `--set` applied, as a checked Recipe and the places of its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_train.errors import InputError, Place, Problem, at
from strix_train.recipe import places
from strix_train.recipe.places import Located
from strix_train.recipe.schema import Recipe


@dataclass(frozen=True, slots=True)
class Loaded:
    """A recipe, the file it came from (absolute), and where each value stands."""

    recipe: Recipe
    path: Path
    located: Located

    @property
    def name(self) -> str:
        """The recipe's name: its file name without the ending."""
        return self.path.stem

    def place(self, *keys: str | int) -> Place:
        """Return the place of a value, for messages about what it names."""
        return self.located.place(keys, at(self.path))

    def beside(self, word: str) -> Path:
        """Return a path of the recipe made absolute: relative paths start at the recipe file."""
        return (self.path.parent / word).absolute()


def load(path: Path, settings: Sequence[str] = ()) -> Loaded:
    """Read and check a recipe. Raises InputError with every fault at once."""
    path = path.absolute()
    located = places.read(path)
    return check(path, located, settings)


def check(path: Path, located: Located, settings: Sequence[str] = ()) -> Loaded:
    """Check a recipe that was read already."""
    from pydantic import ValidationError

    from strix_train.recipe.sentences import problems

    if located.value is None:
        raise InputError(Problem("is empty", at(path), "`train recipes` lists recipes to start from"))
    if not isinstance(located.value, dict):
        raise InputError(Problem("does not hold keys and values", at(path, 1), "begin with `model: …`"))
    for setting in settings:
        _apply(setting, located)
    try:
        recipe = Recipe.model_validate(located.value)
    except ValidationError as error:
        found = problems(error.errors(include_url=False), located.value, located, at(path))
        raise InputError(found) from None
    return Loaded(recipe, path, located)


def _apply(setting: str, located: Located) -> None:
    """Put one KEY=VALUE over the file's values; VALUE is read as YAML."""
    place = Place(f"--set {setting}")
    key, equals, text = setting.partition("=")
    parts: tuple[str, ...] = tuple(part.strip() for part in key.split("."))
    if not equals or not all(parts):
        raise InputError(Problem("is not KEY=VALUE", place, "for example --set schedule.steps=100"))
    try:
        value: Any = places.parse(text, place.source).value
    except InputError as error:
        raise InputError(Problem("the value is not valid YAML", place, error.problems[0].cure)) from None
    section = located.value
    for depth, part in enumerate(parts[:-1], start=1):
        inner = section.get(part)
        if isinstance(inner, str) and depth == 1:
            # `data: rows.jsonl` with `--set data.eval=…`: spell the shorthand out first.
            inner = {{"data": "train", "adapter": "kind", "questions": "file"}.get(part, "value"): inner}
        section[part] = section = inner if isinstance(inner, dict) else {}
    section[parts[-1]] = value
    for known in [known for known in located.places if known[: len(parts)] == parts]:
        del located.places[known]
    located.places[parts] = place
