"""A recipe file, with `--set` applied, as a checked Recipe and the places of its values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_train.errors import InputError, Place, Problem, at
from strix_train.recipe import places
from strix_train.recipe.base import LISTED, SHORT
from strix_train.recipe.places import Located
from strix_train.recipe.schema import Recipe

_INDEXED = re.compile(r"^([^\[\]]+)((?:\[[0-9]{1,6}\])*)$")


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
    parts = _parts(key)
    if not equals or not parts:
        raise InputError(Problem("is not KEY=VALUE", place, "for example --set schedule.steps=100"))
    try:
        value: Any = places.parse(text, place.source).value
    except InputError as error:
        raise InputError(Problem("the value is not valid YAML", place, error.problems[0].cure or "quote it")) from None
    _put(located.value, parts, value, place)
    for known in [known for known in located.places if known[: len(parts)] == parts]:
        del located.places[known]
    located.places[parts] = place


def _parts(key: str) -> tuple[str | int, ...]:
    """Return the keys of `a.b[2].c`; entries of lists are counted from 1, as messages count them."""
    parts: list[str | int] = []
    for word in key.split("."):
        match = _INDEXED.match(word.strip())
        if not match:
            return ()
        parts.append(match[1])
        parts += [int(number) - 1 for number in re.findall(r"[0-9]+", match[2])]
    return tuple(parts)


def _put(section: Any, parts: tuple[str | int, ...], value: Any, place: Place) -> None:
    """Put `value` under `parts`, spelling shorthands out and making sections on the way."""
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        if isinstance(part, int):
            if not isinstance(section, list) or not 0 <= part < len(section):
                count = f"has {len(section)} entries" if isinstance(section, list) else "is not a list here"
                name = "".join(f"[{one + 1}]" if isinstance(one, int) else f".{one}" for one in parts[:depth])
                raise InputError(Problem(f"'{name[1:]}' {count}", place, "entries are counted from 1"))
            inner = section[part]
            if isinstance(inner, str) and not last:
                inner = {"kind" if parts[depth - 1] == "rewards" else "path": inner}
        else:
            inner = section.get(part)
            if isinstance(inner, str) and not last:
                # `data: rows.jsonl` with `--set data.eval=…`: spell the shorthand out first
                inner = [inner] if isinstance(parts[depth + 1], int) else {SHORT.get(part, "path"): inner}
            if isinstance(inner, list) and part in LISTED and not last and not isinstance(parts[depth + 1], int):
                inner = {LISTED[part]: inner}
        if last:
            section[part] = value
            return
        section[part] = section = inner if isinstance(inner, (dict, list)) else {}
        if isinstance(section, list) and not isinstance(parts[depth + 1], int):
            raise InputError(Problem(f"'{part}' is a list here", place, f"say which entry: {part}[1].…"))
