"""Everything that is known before torch is loaded: recipe, model, rows and questions, all checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_train import backends
from strix_train.data import load as data
from strix_train.data import questions as asked
from strix_train.data.rows import Conversation, Row
from strix_train.errors import InputError, Problem
from strix_train.names import ModelName, find_model, find_recipe
from strix_train.recipe.load import Loaded, load
from strix_train.recipe.schema import Question


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that may begin."""

    loaded: Loaded
    model: ModelName
    train: data.DataSet
    evaluation: data.DataSet | None
    questions: tuple[Question, ...]
    backend: backends.Choice

    def resolved(self) -> dict[str, Any]:
        """Return the recipe with every default spelt out and every path absolute."""
        value = self.loaded.recipe.model_dump(mode="json")
        if (self.loaded.path.parent / self.model.word).is_dir():
            value["model"] = self.model.source
        value["data"]["train"] = str(self.train.path)
        if self.evaluation:
            value["data"]["eval"] = str(self.evaluation.path)
        if value["questions"] and value["questions"]["file"]:
            value["questions"]["file"] = str(self.loaded.beside(value["questions"]["file"]))
        return value

    def inputs(self) -> dict[str, Any]:
        """Return the model's source and the digests of the data files."""
        return {
            "recipe": str(self.loaded.path),
            "model": self.model.source,
            "train_sha256": self.train.sha256,
            "eval_sha256": self.evaluation.sha256 if self.evaluation else None,
        }


def make(word: str, settings: Sequence[str] = (), *, with_backend: bool = True) -> Plan:
    """Check a recipe and all that it names. Raises InputError with every fault of the recipe, then of the data."""
    loaded = load(find_recipe(word), settings)
    recipe = loaded.recipe
    problems: list[Problem] = []
    results: list[Any] = []
    steps: list[Any] = [
        lambda: find_model(recipe.model, loaded.path.parent, loaded.place("model")),
        lambda: data.load(_file(loaded, recipe.data.train, "data", "train"), recipe.data.format),
        lambda: (
            data.load(_file(loaded, recipe.data.eval, "data", "eval"), recipe.data.format) if recipe.data.eval else None
        ),
        lambda: _questions(loaded),
        lambda: backends.choose(recipe.backend) if with_backend else backends.Choice(recipe.backend, "", True),
    ]
    for step in steps:
        try:
            results.append(step())
        except InputError as error:
            problems.extend(error.problems)
    if problems:
        raise InputError(problems)
    return Plan(loaded, *results)


def _file(loaded: Loaded, word: str, *keys: str) -> Path:
    path = loaded.beside(word)
    if not path.is_file():
        near = sorted(other.name for other in path.parent.glob("*.jsonl")) if path.parent.is_dir() else []
        what = "is a folder" if path.is_dir() else "does not exist"
        cure = f"beside it there are {', '.join(near[:5])}" if near else "paths start at the recipe file"
        raise InputError(Problem(f"the file {path} {what}", loaded.place(*keys), cure))
    return path


def _questions(loaded: Loaded) -> tuple[Question, ...]:
    wish = loaded.recipe.questions
    if wish is None:
        return ()
    if wish.file is not None:
        return asked.load(_file(loaded, wish.file, "questions", "file"))
    return tuple(wish.ask or ())


def first_words(row: Row) -> str:
    """Return what a row asks: its first user turn, or its prompt."""
    if isinstance(row, Conversation):
        return next(turn.content for turn in row.turns if turn.role == "user")
    return row.prompt


@dataclass(frozen=True, slots=True)
class Findings:
    """What a look at the rows shows. Lengths in characters; the rest are numbers of rows or questions."""

    rows: int
    turns: int
    longest: int
    repeated: int
    shared_with_eval: int
    questions_in_training: int


def findings(plan: Plan) -> Findings:
    """Count what a reader of the data would want to know before training on it."""

    def content(row: Row) -> tuple[Any, ...]:
        if isinstance(row, Conversation):
            return tuple((turn.role, turn.content) for turn in row.turns)
        return (row.prompt, row.completion)

    def length(row: Row) -> int:
        if isinstance(row, Conversation):
            return sum(len(turn.content) for turn in row.turns)
        return len(row.prompt) + len(row.completion)

    rows = plan.train.rows
    contents = [content(row) for row in rows]
    unique = set(contents)
    asks = {first_words(row).strip() for row in rows}
    return Findings(
        rows=len(rows),
        turns=sum(len(row.turns) if isinstance(row, Conversation) else 2 for row in rows),
        longest=max(length(row) for row in rows),
        repeated=len(contents) - len(unique),
        shared_with_eval=sum(content(row) in unique for row in plan.evaluation.rows) if plan.evaluation else 0,
        questions_in_training=sum(question.prompt.strip() in asks for question in plan.questions),
    )
