"""Names as a user writes them: of models and of recipes, turned into paths."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from strix_train.errors import InputError, Place, Problem, nearest
from strix_train.pathwords import NAME, UNEXPANDED, is_unexpanded, longest

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
_BARE = re.compile(r"^[A-Za-z0-9][\w.-]*$")


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model as the recipe names it, and what a library loads: a folder's path or a hub id.

    `gguf`: the file that the folder is made of when it is needed (`importing.ensure`), else None.
    """

    word: str
    source: str
    local: bool
    gguf: Path | None = None


def models_folder() -> Path:
    """Return the folder of models that are known by a bare name."""
    named = os.environ.get("STRIX_MODELS")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path(os.environ.get("HOME") or "/") / ".cache")
    return Path(cache) / "strix-finetune" / "models"


def find_model(word: str, base: Path, place: Place) -> ModelName:
    """Resolve a model: a folder (relative to `base`), then owner/name on the hub, then a name in `models_folder()`.

    Nothing is expanded and nothing is asked of the network. Raises InputError.
    """
    if is_unexpanded(word):
        raise InputError(Problem(f"'{word}' {UNEXPANDED}", place, "write the path"))
    folder = (base / word).absolute()
    if folder.is_dir():
        return ModelName(word, str(_checked(folder, word, place)), True)
    if folder.is_file():
        return _of_file(folder, word, place)
    if word.endswith(".gguf"):
        raise InputError(Problem(f"there is no file {folder}", place, "paths start at the recipe file"))
    if _HUB_ID.match(word):
        return ModelName(word, word, False)
    if not _BARE.match(word):
        raise InputError(Problem(f"there is no folder {folder}", place, "name a model folder or a hub id (owner/name)"))
    known = models_folder()
    if (known / word).is_dir():
        return ModelName(word, str(_checked(known / word, word, place)), True)
    names = sorted(entry.name for entry in known.iterdir() if entry.is_dir()) if known.is_dir() else []
    if word == "demo":
        cure = "fetch it with `strix-finetune fetch demo`, or set STRIX_MODELS to the folder that holds it"
    elif names:
        cure = nearest(word, names)
    else:
        cure = "set STRIX_MODELS to the folder that holds it, or write a path or owner/name"
    raise InputError(Problem(f"there is no model '{word}' in {known}", place, cure))


def _of_file(path: Path, word: str, place: Place) -> ModelName:
    """Return the model of a GGUF file: the folder that it becomes lies in the cache, named after the file."""
    from strix_train.importing import imported, look

    try:
        look(path)
    except InputError as error:
        what = f"the model '{word}' is a file: {error.problems[0].message}"
        raise InputError(Problem(what, place, "name a model folder, a .gguf file, or a hub id (owner/name)")) from None
    return ModelName(word, str(imported(path)), True, path)


def _checked(folder: Path, word: str, place: Place) -> Path:
    if (folder / "adapter_config.json").is_file():
        raise InputError(Problem(f"'{word}' is an adapter, not a model", place, "name the model it was made for"))
    if not (folder / "config.json").is_file():
        ggufs = sorted(folder.glob("*.gguf"))
        cure = f"make a model of it: train import {ggufs[0]} DIR" if ggufs else "a model folder has one"
        raise InputError(Problem(f"{folder} has no config.json", place, cure))
    return folder.absolute()


def recipes_folder() -> Path | None:
    """Return the folder of the shipped recipes, or None where none came along."""
    named = os.environ.get("STRIX_RECIPES")
    here = Path(__file__).resolve().parent
    places = [Path(named)] if named else []
    places += [
        Path("/opt/strix-finetune/recipes"),
        here.parent.parent / "recipes",
        here.parent / "strix_finetune" / "_data" / "recipes",
    ]
    return next((place for place in places if place.is_dir()), None)


def shipped_recipes() -> dict[str, Path]:
    """Return the shipped recipes by name."""
    folder = recipes_folder()
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))} if folder else {}


def find_recipe(word: str) -> Path:
    """Resolve a recipe: a file, or the name of a shipped one (`demo`, `demo.yaml`, `recipes/demo.yaml`)."""
    path = Path(word)
    if longest(word) > NAME:
        raise InputError(Problem(f"'{word[:40]}…' is no name of a recipe", cure="name a recipe file"))
    if path.is_file():
        return path
    if path.is_dir():
        raise InputError(Problem(f"{word} is a folder", cure="name a recipe file in it"))
    shipped = shipped_recipes()
    # not the stem of a path: what follows the dot of llama3.1-8b-lora is no ending
    name = path.name.removesuffix(".yaml").removesuffix(".yml")
    if path.parent in (Path(), Path("recipes")) and name in shipped:
        return shipped[name]
    raise InputError(Problem(f"there is no recipe '{word}'", cure=nearest(name, [*shipped]) if shipped else ""))
