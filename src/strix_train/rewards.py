"""What an answer is worth: the rewards of a recipe as functions of prompt, answer and row."""

from __future__ import annotations

import ast
import importlib.util
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from strix_train.data.numbers import last_number
from strix_train.data.questions import is_right
from strix_train.errors import InputError, Place, Problem, TrainError, nearest
from strix_train.recipe.load import Loaded
from strix_train.recipe.method import Grpo, Length, Match, Number, Pattern, Python, Rewarding

Reward = Callable[[str, str, Mapping[str, Any]], float]


def check(loaded: Loaded) -> None:
    """Check what can be checked without running anything: patterns, and functions in their files. Raises InputError."""
    wish = loaded.recipe.method
    if not isinstance(wish, Grpo):
        return
    problems = []
    for index, each in enumerate(wish.rewards):
        place = loaded.place("method", "rewards", index)
        if isinstance(each, Pattern):
            try:
                re.compile(each.pattern)
            except (re.error, OverflowError, RecursionError) as error:
                problems.append(Problem(f"the pattern is not a regular expression: {error}", place, "mend it"))
        if isinstance(each, Python):
            problems.extend(_function_problems(loaded.beside(each.file), each.name, place))
    if problems:
        raise InputError(problems)


def _function_problems(path: Path, name: str, place: Place) -> list[Problem]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        return [Problem(f"the file {path} cannot be read: {error.strerror}", place, "paths start at the recipe file")]
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", 0) or 0
        return [Problem(f"is not Python: {error.args[0]}", Place(str(path), line), "mend it")]
    known = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if name in known:
        return []
    return [Problem(f"{path} defines no function '{name}'", place, nearest(name, known) if known else "write it there")]


def files(loaded: Loaded) -> list[Path]:
    """Return the files of the user's own functions, in the recipe's order."""
    wish = loaded.recipe.method
    wanted = wish.rewards if isinstance(wish, Grpo) else []
    return [loaded.beside(each.file) for each in wanted if isinstance(each, Python)]


def build(loaded: Loaded) -> list[tuple[str, float, Reward]]:
    """Return the rewards with their names, unlike one another, and weights."""
    wish = loaded.recipe.method
    assert isinstance(wish, Grpo)
    found: list[tuple[str, float, Reward]] = []
    for each in wish.rewards:
        name = each.name if isinstance(each, Python) else each.kind
        taken = sum(other.partition(" ")[0] == name for other, _, _ in found)
        found.append((f"{name} {taken + 1}" if taken else name, each.weight, _reward(loaded, each)))
    return found


def _reward(loaded: Loaded, wish: Rewarding) -> Reward:
    """Return the function of one wish."""
    if isinstance(wish, Match):
        return lambda prompt, answer, row: float(is_right(answer, str(row[wish.column])))
    if isinstance(wish, Number):
        return lambda prompt, answer, row: float(_same(last_number(answer), last_number(str(row[wish.column]))))
    if isinstance(wish, Pattern):
        pattern = re.compile(wish.pattern, re.DOTALL)
        return lambda prompt, answer, row: float(pattern.search(answer) is not None)
    if isinstance(wish, Length):
        return lambda prompt, answer, row: min(1.0, max(0.0, 2.0 - len(answer) / wish.most))
    return _own(loaded.beside(wish.file), wish.name)


def _same(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def _own(path: Path, name: str) -> Reward:
    """Return a user's function, checked each time for what it returns. Raises TrainError where it fails."""
    spec = importlib.util.spec_from_file_location(f"strix_rewards_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise TrainError(f"{path} cannot be imported: {type(error).__name__}: {error}", cure="mend the file") from error
    function = getattr(module, name)

    def reward(prompt: str, answer: str, row: Mapping[str, Any]) -> float:
        try:
            value = float(function(prompt, answer, row))
        except Exception as error:
            raise TrainError(
                f"{path}: the reward '{name}' failed: {type(error).__name__}: {error}",
                cure=f"it is called as {name}(prompt, answer, row) and returns a number",
            ) from error
        if not math.isfinite(value):
            raise TrainError(f"{path}: the reward '{name}' is {value}", cure="return a finite number")
        return value

    return reward


def words_of(said: Any) -> str:
    """Return the text of a prompt or an answer, which may be a list of messages: the last one's words."""
    if isinstance(said, str):
        return said
    return str(said[-1]["content"]) if said else ""


def for_trl(rewards: Sequence[tuple[str, float, Reward]], rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return functions as TRL's trainer calls them; its column `row` is a row's number in `rows`."""

    def made(name: str, reward: Reward) -> Any:
        def called(prompts: list[Any], completions: list[Any], row: list[int], **more: Any) -> list[float]:
            return [
                reward(words_of(prompt), words_of(answer), rows[number])
                for prompt, answer, number in zip(prompts, completions, row, strict=True)
            ]

        called.__name__ = name
        return called

    return [made(name, reward) for name, _, reward in rewards]
