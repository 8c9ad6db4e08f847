"""Rewards of method grpo: what an answer is worth, and what is wrong with a reward before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strix_train import plan, rewards
from strix_train.errors import InputError, TrainError
from strix_train.recipe.load import Loaded, load


def recipe(tmp_path: Path, *wishes: Any, more: str = "") -> Path:
    (tmp_path / "d.jsonl").write_text('{"prompt": "2 + 2?", "answer": "4"}\n{"prompt": "3 + 3?", "answer": "6"}\n')
    path = tmp_path / "r.yaml"
    written = json.dumps({"kind": "grpo", "rewards": list(wishes), "max_new_tokens": 64})
    path.write_text(f"model: o/n\ndata: d.jsonl\nmethod: {written}\nschedule: {{steps: 1, {more}}}\n")
    return path


def loaded(tmp_path: Path, *wishes: Any) -> Loaded:
    return load(recipe(tmp_path, *wishes))


def worth(tmp_path: Path, wish: Any, answer: str, row: dict[str, Any] | None = None) -> float:
    ((_, _, reward),) = rewards.build(loaded(tmp_path, wish))
    return reward("a prompt", answer, row or {})


@pytest.mark.parametrize(
    ("wish", "answer", "row", "value"),
    [
        ("match", "It is Paris.", {"answer": "paris"}, 1.0),
        ("match", "It is Parish.", {"answer": "paris"}, 0.0),
        ({"kind": "match", "column": "city"}, "Paris", {"city": "Paris"}, 1.0),
        ("number", "3 and 4 make 7.", {"answer": "#### 7"}, 1.0),
        ("number", "It costs 1,234.50", {"answer": 1234.5}, 1.0),
        ("number", "7, no: 8", {"answer": "7"}, 0.0),
        ("number", "none", {"answer": "7"}, 0.0),
        ({"kind": "pattern", "pattern": "^<think>.*</think>"}, "<think>a\nb</think> c", {}, 1.0),
        ({"kind": "pattern", "pattern": "^x"}, "ax", {}, 0.0),
        ({"kind": "length", "most": 4}, "abcd", {}, 1.0),
        ({"kind": "length", "most": 4}, "abcdef", {}, 0.5),
        ({"kind": "length", "most": 4}, "a" * 100, {}, 0.0),
    ],
)
def test_what_an_answer_is_worth(tmp_path: Path, wish: Any, answer: str, row: dict[str, Any], value: float) -> None:
    assert worth(tmp_path, wish, answer, row) == value


def test_a_function_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def reward(prompt, answer, row):\n    return len(prompt + answer) + row['x']\n")
    assert worth(tmp_path, {"kind": "python", "file": "mine.py"}, "abc", {"x": 1}) == 12.0
    for body, sentence in (
        (
            "return 1 / 0",
            "the reward 'reward' failed: ZeroDivisionError: division by zero; it is called as reward(prom",
        ),
        ("return 'x'", "failed: ValueError"),
        ("return float('nan')", "the reward 'reward' is nan; return a finite number"),
    ):
        (tmp_path / "mine.py").write_text(f"def reward(prompt, answer, row):\n    {body}\n")
        with pytest.raises(TrainError) as caught:
            worth(tmp_path, {"kind": "python", "file": "mine.py"}, "abc")
        assert sentence in str(caught.value)
    (tmp_path / "mine.py").write_text("import nothing_of_that_name\ndef reward(prompt, answer, row): return 1\n")
    with pytest.raises(TrainError, match="cannot be imported: ModuleNotFoundError"):
        rewards.build(loaded(tmp_path, {"kind": "python", "file": "mine.py"}))


def test_names_and_weights(tmp_path: Path) -> None:
    found = rewards.build(loaded(tmp_path, "match", {"kind": "match", "column": "x", "weight": 0.5}, "number"))
    assert [(name, weight) for name, weight, _ in found] == [("match", 1.0), ("match 2", 0.5), ("number", 1.0)]


def test_as_trl_calls_them(tmp_path: Path) -> None:
    rows = [{"answer": "4"}, {"answer": "6"}]
    (match,) = rewards.for_trl(rewards.build(loaded(tmp_path, "match")), rows)
    assert match.__name__ == "match"
    prompts = [[{"role": "user", "content": "q"}]] * 2
    said = [[{"role": "assistant", "content": "4"}], [{"role": "assistant", "content": "5"}]]
    assert match(prompts=prompts, completions=said, row=[0, 1], completion_ids=[[1], [2]], trainer_state=None) == [1, 0]
    assert match(["q"], ["6"], row=[1]) == [1.0]


@pytest.mark.parametrize(
    ("wish", "file", "sentence"),
    [
        ({"kind": "pattern", "pattern": "("}, None, "r.yaml:3:38: the pattern is not a regular expression: missing )"),
        (
            {"kind": "pattern", "pattern": "a{99999999999}"},
            None,
            "r.yaml:3:38: the pattern is not a regular expression: the repetition number is too large",
        ),
        ({"kind": "python", "file": "no.py"}, None, "r.yaml:3:38: the file {}/no.py cannot be read: No such file"),
        (
            {"kind": "python", "file": "a.py"},
            "def rewrd(p, a, r): ...",
            "defines no function 'reward'; did you mean 'rew",
        ),
        ({"kind": "python", "file": "a.py"}, "def (", "a.py:1: is not Python: invalid syntax; mend it"),
        ({"kind": "match", "column": "city"}, None, "d.jsonl:1:1: the row has no 'city'; it has 'answer', 'prompt'"),
        ({"kind": "lenght", "most": 3}, None, "'method.rewards[1]' is 'lenght'; it may be match, number, pattern"),
    ],
)
def test_wrong_rewards_are_told_before_anything_is_loaded(
    tmp_path: Path, wish: Any, file: str | None, sentence: str
) -> None:
    if file is not None:
        (tmp_path / "a.py").write_text(file)
    with pytest.raises(InputError) as caught:
        plan.make(str(recipe(tmp_path, wish)), with_backend=False)
    assert sentence.format(tmp_path) in str(caught.value)


def test_a_row_that_no_answer_can_be_right_for(tmp_path: Path) -> None:
    path = recipe(tmp_path, "number")
    (tmp_path / "d.jsonl").write_text('{"prompt": "q", "answer": "yes"}\n')
    with pytest.raises(
        InputError, match=r"d\.jsonl:1:27: 'answer' holds no number; the reward 'number' could never be"
    ):
        plan.make(str(path), with_backend=False)
    plan.make(str(recipe(tmp_path, "match")), with_backend=False)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("batch: 2, accumulation: 3", "a step has 2 × 3 rows, which is no multiple of the 8 answers to each prompt"),
        ("max_length: 64", "answers of 64 tokens leave no room for a prompt in 64; raise schedule.max_length"),
    ],
)
def test_answers_that_do_not_go_into_a_step(tmp_path: Path, more: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        plan.make(str(recipe(tmp_path, "match", more=more)), with_backend=False)


def test_the_resolved_recipe_finds_its_functions(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def reward(prompt, answer, row):\n    return 1\n")
    made = plan.make(str(recipe(tmp_path, {"kind": "python", "file": "mine.py"})), with_backend=False)
    assert made.resolved()["method"]["rewards"][0]["file"] == str(tmp_path / "mine.py")
