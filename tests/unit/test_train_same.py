"""What of a recipe may differ when a run goes on, and how the difference is told."""

from __future__ import annotations

from strix_train import same

BEFORE = {
    "model": "demo",
    "schedule": {"seed": 3, "learning_rate": 0.005, "steps": 40},
    "data": {"train": [{"path": "/a/rows.jsonl", "weight": 1.0}]},
    "checkpoints": {"every": 10, "keep": 2},
    "questions": None,
    "reward": None,
}


def test_the_same_is_the_same() -> None:
    assert same.differences(BEFORE, BEFORE) == []


def test_each_key_is_named_with_both_values() -> None:
    now = {
        **BEFORE,
        "model": "other",
        "schedule": {"seed": 4, "learning_rate": 0.005, "steps": None},
        "data": {"train": [{"path": "/b/rows.jsonl", "weight": 1.0}]},
    }
    assert same.differences(BEFORE, now) == [
        "model is other and was demo",
        "schedule.seed is 4 and was 3",
        "schedule.steps is not set and was 40",
        "data.train is [{'path': '/b/rows.jsonl', 'weight': 1.0}] and was [{'path': '/a/rows.jsonl', 'weight': 1.0}]",
    ]


def test_what_changes_no_weight_may_differ() -> None:
    now = {**BEFORE, "checkpoints": {"every": 1}, "output": "x", "questions": {"file": "q"}, "guard": {"spike": 9.0}}
    assert same.differences(BEFORE, now) == []


def test_a_key_that_came_later_and_says_nothing_is_no_difference() -> None:
    old = {key: value for key, value in BEFORE.items() if key != "reward"}
    assert same.differences(old, BEFORE) == []
    assert same.differences(BEFORE, old) == []


def test_other_content_of_the_same_files_is_found() -> None:
    before = {"recipe": "/r.yaml", "train_sha256": "a", "eval_sha256": None}
    assert same.other_inputs(before, {**before, "recipe": "/s.yaml"}) == []
    assert same.other_inputs(before, {**before, "train_sha256": "b"}) == [
        "the content of data.train differs from what it was"
    ]
    assert same.other_inputs({}, before) == []
    known = {"model_sha256": "a", "template_sha256": None, "rewards_sha256": "c"}
    assert same.other_inputs(known, {**known, "model_sha256": None}) == []
    assert same.other_inputs({**known, "model_sha256": None}, known) == []
    assert same.other_inputs(known, {"model_sha256": "b", "template_sha256": "b", "rewards_sha256": "b"}) == [
        "the content of the model differs from what it was",
        "the content of data.template differs from what it was",
        "the content of the rewards' files differs from what it was",
    ]


def test_other_versions_are_told() -> None:
    before = {"packages": {"torch": "2.13", "peft": "1"}, "device": {"name": "CPU A", "kind": "cpu"}}
    now = {"packages": {"torch": "2.14", "peft": "1"}, "device": {"name": "MI300X", "kind": "rocm"}}
    assert same.other_versions(before, before) == []
    assert same.other_versions(before, now) == ["torch is 2.14 and was 2.13", "the device is MI300X and was CPU A"]
