"""What a recipe needs of the host: the files that a run reads and the folders that it writes, found and checked.

A path that is not there would surface inside the container, as an empty folder of root's or as a file that "does not
exist" although it does, beside the mounts. So everything is looked up here first, by the rules of `train` itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from strix_finetune.errors import InputError, Place, Problem

if TYPE_CHECKING:
    from strix_train.errors import TrainError
    from strix_train.recipe.load import Loaded

# inside the image
RECIPES = "/opt/strix-finetune/recipes"
# folders that a model may be made of by links: the hub's snapshots are
_MOST_ENTRIES = 2000


@dataclass(frozen=True, slots=True)
class RecipeFacts:
    """`argument`: how the recipe is called inside. `reads`, `writes`: absolute paths of the host, the ones that are
    read in the order in which they were found; what is written are folders, which need not exist yet."""

    argument: str = ""
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()


def find(word: str, arguments: Sequence[str], workdir: Path, recipes: Path, models: Path) -> RecipeFacts:
    """Look up a recipe (a file, or the name of one that ships, which lie in `recipes`) and what it names.

    `arguments` are those of `train`; `models` is the folder of models with bare names. Raises InputError with every
    path that is missing.
    """
    own = Path(word)
    path = Path(os.path.normpath(workdir / own))
    if path.is_file():
        argument, reads = str(path), [path]
    elif own.suffix or "/" in word or path.is_dir():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(Problem(f"the recipe {what}", Place(own), "check the path; 'train recipes' lists ours"))
    else:
        argument, path, reads = f"{RECIPES}/{own.stem}.yaml", recipes / f"{own.stem}.yaml", []
        if not path.is_file():
            from strix_finetune.errors import nearest

            known = [each.stem for each in recipes.glob("*.yaml")]
            raise InputError(
                Problem(f"there is no recipe '{word}', neither here nor among ours", cure=nearest(word, known))
            )
    settings, run, resume = _options(arguments)
    loaded = _load(path, settings)
    # what lies beside a recipe of ours is in the image, too
    own_file = bool(reads)
    reads += [each for each in _data(loaded) if own_file or not each.is_relative_to(recipes)]
    reads += _model(loaded, models)
    writes = _writes(workdir / (run or loaded.recipe.output), exists=resume and bool(run))
    return RecipeFacts(argument, tuple(dict.fromkeys(each for path in reads for each in with_targets(path))), writes)


def of_words(words: Sequence[str], workdir: Path) -> RecipeFacts:
    """What other commands of `train` may read and write: each word that is a path, or is in a folder that there is."""
    reads: list[Path] = []
    writes: list[Path] = []
    for word in (each.rpartition("=")[2] for each in words):
        path = Path(os.path.normpath(workdir / word))
        if path.is_file():
            reads.append(path)
        elif path.is_dir():
            writes.append(path)
        elif "/" in word and path.parent.is_dir() and path.parent != path:
            writes.append(path.parent)
    return RecipeFacts("", tuple(reads), tuple(path for path in writes if path != Path("/")))


def with_targets(path: Path) -> Iterator[Path]:
    """A path and where its links lead: a link in a mounted folder is of no use without what it points at."""
    real = path.resolve()
    path = Path(os.path.normpath(path))  # `..` would seem to lie in the folder that it leaves
    yield path
    if real != path:
        yield real
    if real.is_dir():
        with os.scandir(real) as entries:
            for _, entry in zip(range(_MOST_ENTRIES), entries, strict=False):
                if entry.is_symlink():
                    target = Path(entry.path).resolve()
                    if target.exists() and not target.is_relative_to(real):
                        yield target.parent


def _options(arguments: Sequence[str]) -> tuple[list[str], Path | None, bool]:
    """--set, --run-dir and --resume of `train`. What else there is, `train` itself will judge."""
    settings: list[str] = []
    run: Path | None = None
    rest = iter(arguments)
    for word in rest:
        name, equals, value = word.partition("=")
        if name in ("--set", "--run-dir"):
            value = value if equals else next(rest, "")
            if name == "--set":
                settings.append(value)
            else:
                run = Path(value)
    return settings, run, "--resume" in arguments


def _load(path: Path, settings: Sequence[str]) -> Loaded:
    from strix_train.errors import TrainError
    from strix_train.recipe.load import load

    try:
        return load(path, settings)
    except TrainError as error:
        _told(error)


def _told(error: TrainError) -> NoReturn:
    """A fault that `train` found, as one of ours: the same sentence."""
    raise InputError([Problem(str(problem)) for problem in error.problems]) from None


def _data(loaded: Loaded) -> list[Path]:
    """The files and folders of rows, questions, the template and functions of rewards."""
    from strix_train.data.bytestream import ending
    from strix_train.data.files import READERS
    from strix_train.data.hub import is_hub_id
    from strix_train.sources import beside

    recipe = loaded.recipe
    named: list[tuple[tuple[str | int, ...], str, bool]] = []
    for role, sets in (("train", recipe.data.train), ("eval", recipe.data.eval or [])):
        named += [(("data", role, index, "path"), source.path, True) for index, source in enumerate(sets)]
    if recipe.questions is not None and recipe.questions.file is not None:
        named.append((("questions", "file"), recipe.questions.file, False))
    if recipe.data.template.endswith(".jinja"):
        named.append((("data", "template"), recipe.data.template, False))
    if recipe.method.kind == "grpo":
        named += [
            (("method", "rewards", index, "file"), reward.file, False)
            for index, reward in enumerate(recipe.method.rewards)
            if reward.kind == "python"
        ]
    found: list[Path] = []
    problems: list[Problem] = []
    for keys, word, may_be_hub in named:
        path = loaded.beside(word)
        if path.exists():
            found.append(path)
        elif not (may_be_hub and is_hub_id(word) and not path.parent.is_dir() and ending(path) not in READERS):
            problems.append(Problem(f"{loaded.place(*keys)}: the file {path} does not exist", cure=beside(path)))
    if problems:
        raise InputError(problems)
    return found


def _model(loaded: Loaded, models: Path) -> list[Path]:
    """The model's folder, where it is one; a model of the hub is fetched by the run."""
    from strix_train import names
    from strix_train.errors import TrainError

    place = loaded.place("model")
    before = os.environ.get("STRIX_MODELS")
    os.environ["STRIX_MODELS"] = str(models)
    try:
        found = names.find_model(loaded.recipe.model, loaded.path.parent, place)
    except TrainError as error:
        _told(error)
    finally:
        if before is None:
            del os.environ["STRIX_MODELS"]
        else:
            os.environ["STRIX_MODELS"] = before
    return [Path(found.source)] if found.local else []


def _writes(folder: Path, *, exists: bool) -> tuple[Path, ...]:
    """The folder of the runs, which must be, or become, one that the caller can write to."""
    folder = Path(os.path.normpath(folder))
    if exists and not folder.is_dir():
        raise InputError(Problem(f"there is no run folder {folder}", cure="leave --resume out to begin one"))
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    if not nearest.is_dir():
        raise InputError(Problem(f"{nearest} is not a folder, and the run needs one", cure="name another folder"))
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(Problem(f"{nearest} is not yours to write to", cure="name another folder for the run"))
    return tuple(dict.fromkeys((folder, folder.resolve())))
