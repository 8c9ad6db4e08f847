"""Evaluation in words and numbers; models are measured in the training tests."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from strix_train import evaluate, generate, lmtasks
from strix_train.errors import InputError
from strix_train.evaluate import Answered, Foretold, Measured, Preferred
from strix_train.names import ModelName
from strix_train.recipe.schema import Question


@pytest.mark.parametrize(
    ("answer", "same"),
    [("Green", True), ("green.", True), ("  GREEN ! ", False), ("It is green", False), ("", False), ("gre en", False)],
)
def test_an_exact_answer(answer: str, same: bool) -> None:
    assert evaluate.is_exact(answer, Question.model_construct(prompt="?", expect="green", system=None)) is same


def test_what_changed_is_told() -> None:
    before = Measured(Foretold(6, 30, 6.75, 854.2), None, Answered(8, 0, 0))
    after = Measured(Foretold(6, 30, 1.9348, 6.923), None, Answered(8, 7, 3))
    assert evaluate.summary(before, after) == {
        "loss": "6.7500 without the adapter, 1.9348 with it (6 rows, 30 tokens)",
        "perplexity": "854.200 without the adapter, 6.923 with it",
        "right": "0 of 8 without the adapter, 7 of 8 with it",
        "exactly": "0 of 8 without the adapter, 3 of 8 with it",
    }
    assert evaluate.summary(None, Measured(preferred=Preferred(12, 0.75))) == {
        "better preferred": "75.0% (of 12 pairs)"
    }
    found = evaluate.as_json(None, after, {"answers": [], "summary": {"task": "acc 0.5"}})
    assert found["summary"]["task"] == "acc 0.5"
    assert found["before"] is None
    assert found["after"]["answered"] == {"questions": 8, "right": 7, "exact": 3}


def test_there_must_be_something_to_measure(tmp_path: Path) -> None:
    model = tmp_path / "m"
    model.mkdir()
    (model / "config.json").write_text("{}")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "q", "completion": "a"}\n')
    other = tmp_path / "other.jsonl"
    other.write_text('{"prompt": "x", "completion": "y"}\n{"prompt": "z", "completion": "y"}\n')
    text = f"model: {model}\ndata: {{train: {rows}, template: plain}}\nschedule: {{steps: 1}}\n"
    (tmp_path / "recipe.resolved.yaml").write_text(text)
    with pytest.raises(InputError, match="has neither evaluation rows nor questions; give --data or --questions"):
        evaluate.what_to_measure(tmp_path, None, None)
    assert evaluate.what_to_measure(tmp_path, None, None, tasks=True).evaluation is None
    rows.unlink()  # the rows that were trained on may be gone
    plan = evaluate.what_to_measure(tmp_path, other, None)
    assert plan.evaluation is not None
    assert len(plan.evaluation) == 2
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"prompt": "q", "expect": "a"}\n')
    assert len(evaluate.what_to_measure(tmp_path, other, questions).questions) == 1


def test_prompts_without_answers_are_nothing_to_measure(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Who?"}\n{"prompt": "What?"}\n')
    (tmp_path / "recipe.resolved.yaml").write_text(
        "model: m\ndata: {train: prompts.jsonl, eval: prompts.jsonl, template: plain}\nschedule: {steps: 1, batch: 2}\n"
        "method: {kind: grpo, rewards: [{kind: length, most: 5}], generations: 2, max_new_tokens: 4}\n"
    )
    with pytest.raises(InputError, match="are prompts without answers, of which nothing is measured; give --questions"):
        evaluate.what_to_measure(tmp_path, None, None)
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"prompt": "q", "expect": "a"}\n')
    assert evaluate.what_to_measure(tmp_path, None, questions).questions
    assert evaluate.what_to_measure(tmp_path, None, None, tasks=True).evaluation is not None


def test_a_fault_of_other_rows_is_said_once_and_at_the_option(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    (tmp_path / "recipe.resolved.yaml").write_text("model: m\ndata: {train: gone.jsonl}\nschedule: {steps: 1}\n")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"messages": [}\n')
    with pytest.raises(InputError, match=r"broken\.jsonl:1:15: is not valid JSON") as caught:
        evaluate.what_to_measure(tmp_path, broken, None)
    assert len(caught.value.problems) == 1
    with pytest.raises(InputError, match=r"^--data: the file .*none\.jsonl does not exist") as caught:
        evaluate.what_to_measure(tmp_path, tmp_path / "none.jsonl", None)
    assert len(caught.value.problems) == 1
    with pytest.raises(InputError, match=r"--questions: the file .*none\.jsonl does not exist"):
        evaluate.what_to_measure(tmp_path, None, tmp_path / "none.jsonl")


def _lm_eval(monkeypatch: pytest.MonkeyPatch, seen: dict[str, Any]) -> None:
    """Put a stand-in for lm-eval into place, which notes what it is asked."""

    class TaskManager:
        all_tasks = ("arc_easy", "hellaswag")

    class HFLM:
        def __init__(self, **words: Any) -> None:
            seen["model"] = words

    def simple_evaluate(**words: Any) -> dict[str, Any]:
        seen["wanted"] = words
        return {"results": {name: {"alias": name, "acc,none": 0.25, "acc_stderr,none": 0.1} for name in words["tasks"]}}

    modules = {
        "lm_eval": {"simple_evaluate": simple_evaluate},
        "lm_eval.models": {},
        "lm_eval.models.huggingface": {"HFLM": HFLM},
        "lm_eval.tasks": {"TaskManager": TaskManager},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        for key, value in content.items():
            setattr(module, key, value)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(generate, "load", lambda source: ("model", "tokenizer"))


def test_tasks_of_lm_eval_are_run_on_the_trained_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    _lm_eval(monkeypatch, seen)
    own = tmp_path / "own.yaml"
    own.write_text("task: own\n")
    source = generate.Source(ModelName("m", "m", True), None)
    found = lmtasks.tasks(source, ["arc_easy", str(own)], limit=4, batch=2)
    assert seen["model"] == {"pretrained": "model", "tokenizer": "tokenizer", "batch_size": 2}
    assert (seen["wanted"]["limit"], seen["wanted"]["tasks"]) == (4, ["arc_easy", str(own)])
    # numbers alone are kept
    assert found["arc_easy"] == {"acc,none": 0.25, "acc_stderr,none": 0.1}
    with pytest.raises(InputError, match="lm-eval has no task 'arc_hard'; `lm-eval ls tasks` lists them"):
        lmtasks.tasks(source, ["arc_hard"], limit=None, batch=2)


def test_tasks_without_lm_eval_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(InputError, match="--tasks needs the package lm-eval, which is not here"):
        lmtasks.tasks(generate.Source(ModelName("m", "m", True), None), ["arc_easy"], limit=None, batch=2)
