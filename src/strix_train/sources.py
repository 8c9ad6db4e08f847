"""The sets of rows that a recipe names: found, checked, and looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strix_train.data import files, hub
from strix_train.data.bytestream import ending
from strix_train.data.formats import FORMATS, learned_by
from strix_train.data.formats.talk import Wishes
from strix_train.data.load import DataSet, Shape, load
from strix_train.data.look import Look
from strix_train.errors import InputError, Place, Problem
from strix_train.pathwords import UNEXPANDED, is_unexpanded
from strix_train.recipe.load import Loaded
from strix_train.recipe.schema import Source


@dataclass(frozen=True, slots=True)
class Set:
    """One set of a recipe: what it says, where, the rows, and what a look at them shows.

    `data` is None for a set of the hub that was not fetched.
    """

    source: Source
    role: str
    place: Place
    data: DataSet | None
    look: Look


def read(loaded: Loaded, role: str, *, fetch: bool) -> tuple[Set, ...]:
    """Return the checked sets of `role` (train or eval). Raises InputError with the faults of all of them."""
    recipe = loaded.recipe
    sources = recipe.data.train if role == "train" else recipe.data.eval or []
    found: list[Set] = []
    problems: list[Problem] = []
    for index, source in enumerate(sources):
        place = loaded.place("data", role, index, "path")
        look = Look(recipe.schedule.max_length)
        try:
            paths = _files(loaded, source, role, place, fetch=fetch)
            shape = _shape(loaded, source, loaded.place("data", role, index, "format"))
            data = load(_path(loaded, source), shape, paths, see=look.see) if paths else None
        except InputError as error:
            problems.extend(error.problems)
            continue
        found.append(Set(source, role, place, data, look))
    if problems:
        raise InputError(problems)
    return tuple(found)


def _path(loaded: Loaded, source: Source) -> Path:
    path = loaded.beside(source.path)
    return path if path.exists() else Path(source.path)


def _files(loaded: Loaded, source: Source, role: str, place: Place, *, fetch: bool) -> tuple[Path, ...]:
    """Return the files of a set; none for a set of the hub that is not to be fetched."""
    word = source.path
    if is_unexpanded(word):
        raise InputError(Problem(f"'{word}' {UNEXPANDED}", place, "write the path"))
    path = loaded.beside(word)
    if path.exists():
        if source.subset is not None:
            raise InputError(
                Problem(f"{path} is here, and only sets of the hub have subsets", place, "remove 'subset'")
            )
        return files.local(path, source.split, role, place)
    if hub.is_hub_id(word) and not path.parent.is_dir() and ending(path) not in files.READERS:
        if not fetch:
            return ()
        return hub.fetch(word, source.subset, source.split or ("train" if role == "train" else "validation"), place)
    raise InputError(Problem(f"the file {path} does not exist", place, beside(path)))


def beside(path: Path) -> str:
    """Return what lies where a file should: the nearest names."""
    folder = path.parent
    if not folder.is_dir():
        return "paths start at the recipe file"
    known = sorted(other.name for other in folder.iterdir() if ending(other) in files.READERS)
    return f"beside it there are {', '.join(known[:5])}" if known else "paths start at the recipe file"


def _shape(loaded: Loaded, source: Source, place: Place) -> Shape:
    """Return what the recipe says about a set. Raises InputError for a format that its method does not learn."""
    recipe = loaded.recipe
    method = recipe.method.kind
    name = source.format if source.format != "auto" else recipe.data.format
    form = FORMATS.get(name)
    if form is not None and method not in form.methods:
        known = ", ".join(each.name for each in learned_by(method))
        raise InputError(Problem(f"method {method} does not learn rows of format {name}", place, f"it learns {known}"))
    columns = {str(key): value for key, value in (source.columns or recipe.data.columns).items()}
    rewards = recipe.method.rewards if recipe.method.kind == "grpo" else []
    wanted = tuple(dict.fromkeys(each.column for each in rewards if each.kind in ("match", "number")))
    numbers = tuple(each.column for each in rewards if each.kind == "number")
    return Shape(
        method=method,
        format=name,
        columns=columns,
        wishes=Wishes(dict(recipe.data.roles), recipe.data.merge_system, wanted, numbers),
        skip=recipe.data.faulty == "skip",
    )


def summary(sets: Sequence[Set]) -> str:
    """Return the formats of some sets, each once."""
    return ", ".join(dict.fromkeys(each.data.format for each in sets if each.data))
