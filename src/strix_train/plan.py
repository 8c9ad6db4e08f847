"""Everything that is known before torch is loaded: recipe, model, rows and questions, all checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from strix_train import backends, fit, localtext, rewards, sameness, sources
from strix_train.data import mix
from strix_train.data import questions as asked
from strix_train.data.look import repeated, shared
from strix_train.data.mix import Rows
from strix_train.errors import InputError, Problem
from strix_train.names import ModelName, find_model, find_recipe
from strix_train.recipe.load import Loaded, load
from strix_train.recipe.schema import Question, Recipe
from strix_train.refusals import refusals
from strix_train.sources import Set


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that may begin. `lengths`: of each of `sets`, where the model's tokenizer is on this machine."""

    loaded: Loaded
    model: ModelName
    sets: tuple[Set, ...]
    train: Rows
    evaluation: Rows | None
    questions: tuple[Question, ...]
    template: fit.Template
    lengths: dict[int, fit.Lengths]
    backend: backends.Choice

    def resolved(self) -> dict[str, Any]:
        """Return the recipe with every default spelt out and every path absolute."""
        value = self.loaded.recipe.model_dump(mode="json")
        if (self.loaded.path.parent / self.model.word).exists():
            value["model"] = self.model.source
        for role in ("train", "eval"):
            mine = [each for each in self.sets if each.role == role]
            for written, each in zip(value["data"][role] or (), mine, strict=True):
                if each.data and each.data.path.exists():
                    written["path"] = str(each.data.path)
        if value["questions"] and value["questions"]["file"]:
            value["questions"]["file"] = str(self.loaded.beside(value["questions"]["file"]))
        if self.template.source and value["data"]["template"] != "simple":
            value["data"]["template"] = str(self.loaded.beside(value["data"]["template"]))
        for reward in value["method"].get("rewards", ()):
            if reward["kind"] == "python":
                reward["file"] = str(self.loaded.beside(reward["file"]))
        return value

    def inputs(self) -> dict[str, Any]:
        """Return the model's source, and digests of all that the recipe names and training reads."""
        return {
            "recipe": str(self.loaded.path),
            "model": self.model.source,
            "train_sha256": self.train.fingerprint,
            "eval_sha256": self.evaluation.fingerprint if self.evaluation else None,
            "model_sha256": sameness.of_model(localtext.folder_of(self.model)),
            "template_sha256": sameness.of_text(self.template.source),
            "rewards_sha256": sameness.of_files(rewards.files(self.loaded)),
            "files": {each.source.path: each.data.sha256 for each in self.sets if each.data},
        }


def make(word: str, settings: Sequence[str] = (), *, with_backend: bool = True, fetch: bool = True) -> Plan:
    """Check a recipe and all that it names. Raises InputError with every fault of the recipe, then of the data.

    `fetch`: get sets of rows from the hub that are not here yet; else they are passed over.
    """
    loaded = _numbered(load(find_recipe(word), settings), settings)
    recipe = loaded.recipe
    problems = refusals(loaded)

    def done(step: Callable[[], Any]) -> Any:
        try:
            return step()
        except InputError as error:
            problems.extend(error.problems)
            return None

    model = done(lambda: find_model(recipe.model, loaded.path.parent, loaded.place("model")))
    train = done(lambda: sources.read(loaded, "train", fetch=fetch))
    evaluation = done(lambda: sources.read(loaded, "eval", fetch=fetch))
    questions = done(lambda: _questions(loaded))
    template = done(lambda: fit.template_of(loaded))
    done(lambda: rewards.check(loaded))
    backend = (
        done(lambda: backends.choose(recipe.backend, recipe.method.kind, recipe.adapter.kind, _strategy(recipe)))
        if with_backend
        else None
    )
    if problems:
        raise InputError(problems)
    sets = (*train, *evaluation)
    _both_marks(loaded, train)
    lengths = fit.check(loaded, model, template, sets, questions)
    rows, held = _divided(loaded, train)
    if evaluation:
        held = mix.whole([each.data for each in evaluation if each.data])
    return Plan(
        loaded,
        model,
        sets,
        rows,
        held,
        questions,
        template,
        lengths,
        backend or backends.Choice(recipe.backend, "", True),
    )


def _strategy(recipe: Recipe) -> str:
    """Return the strategy that the backend must be able to follow: one process shares with nobody."""
    return recipe.strategy.kind if os.environ.get("WORLD_SIZE", "1") != "1" else "none"


def _numbered(loaded: Loaded, settings: Sequence[str]) -> Loaded:
    """Return the recipe with a number of rows in place of `batch: auto`, by the machine that this is."""
    if loaded.recipe.schedule.batch != "auto":
        return loaded
    from strix_train.estimate import auto, machines

    return load(loaded.path, [*settings, *auto.settings(loaded, settings, machines.here())])


def _divided(loaded: Loaded, train: Sequence[Set]) -> tuple[Rows, Rows | None]:
    """Return the rows to train on and those that evaluation.split keeps. Raises InputError where none is left."""
    recipe = loaded.recipe
    here = [each for each in train if each.data]
    split = recipe.evaluation.split
    sets, weights = [each.data for each in here if each.data], [each.source.weight for each in here]
    rows, held = mix.divide(sets, weights, split, recipe.schedule.seed)
    if here and not len(rows):
        place = loaded.place("evaluation", "split") if split else loaded.place("data", "train")
        total = sum(map(len, sets))
        what = f"no row is left to train on: there {'is 1 row' if total == 1 else f'are {total} rows'}"
        cure = "keep fewer rows for evaluation, or remove the split" if split else "raise the weights of data.train"
        raise InputError(Problem(what, place, cure))
    return rows, held


def _both_marks(loaded: Loaded, train: Sequence[Set]) -> None:
    """Refuse marked rows that are all good, or all bad: there would be nothing to tell apart."""
    rows, good = sum(each.look.rows for each in train), sum(each.look.good for each in train)
    if loaded.recipe.method.kind != "kto" or not rows or 0 < good < rows:
        return
    what = f"all {rows} rows are marked {'good' if good else 'bad'}"
    raise InputError(Problem(what, loaded.place("data", "train"), "method kto needs rows of both kinds"))


def _questions(loaded: Loaded) -> tuple[Question, ...]:
    wish = loaded.recipe.questions
    if wish is None:
        return ()
    if wish.file is not None:
        path = loaded.beside(wish.file)
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "does not exist"
            place = loaded.place("questions", "file")
            raise InputError(Problem(f"the file {path} {what}", place, sources.beside(path)))
        return asked.load(path)
    return tuple(wish.ask or ())


@dataclass(frozen=True, slots=True)
class Findings:
    """What a look at the rows shows. Lengths in characters; the rest are numbers of rows or questions."""

    rows: int
    turns: int
    longest: int
    repeated: int
    shared_with_eval: int
    questions_in_training: int
    skipped: int
    cut: int
    lost: int
    exact: bool


def findings(plan: Plan) -> Findings:
    """Count what a reader of the data would want to know before training on it."""
    train = [each for each in plan.sets if each.role == "train" and each.data]
    other = [each.data for each in plan.sets if each.role == "eval" and each.data]
    data = [each.data for each in train if each.data]
    lengths = [found for index, found in plan.lengths.items() if plan.sets[index].role == "train"]
    asks = {ask for each in train for ask in each.look.asks}
    return Findings(
        rows=len(plan.train),
        turns=sum(each.look.turns for each in train),
        longest=max((each.look.longest for each in train), default=0),
        repeated=repeated(data),
        shared_with_eval=shared(data, other),
        questions_in_training=sum(hash(question.prompt.strip()) in asks for question in plan.questions),
        skipped=sum(each.data.skipped for each in plan.sets if each.data),
        cut=sum(found.cut for found in lengths),
        lost=sum(found.lost for found in lengths),
        exact=all(found.exact for found in lengths),
    )


def formats(plan: Plan, role: str) -> str:
    """Return the formats of the sets of a role."""
    return sources.summary([each for each in plan.sets if each.role == role])
