"""Splits of a folder: which files are trained on, and what is refused before a wrong one is."""

from __future__ import annotations

from pathlib import Path

import pytest

from strix_train.data.files import local
from strix_train.data.splits import name_of
from strix_train.errors import InputError, Place

PLACE = Place("r.yaml", 1)


def folder(tmp_path: Path, *names: str) -> Path:
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"prompt": "q", "completion": "a"}\n')
    return tmp_path


def chosen(path: Path, split: str | None = None, role: str = "train") -> list[str]:
    return [str(file.relative_to(path)) for file in local(path, split, role, PLACE)]


def refused(path: Path, split: str | None = None, role: str = "train") -> str:
    with pytest.raises(InputError) as caught:
        local(path, split, role, PLACE)
    (problem,) = caught.value.problems
    assert problem.cure
    return str(problem).replace(f"{path}", "F")


@pytest.mark.parametrize(
    ("path", "word", "name"),
    [
        ("train-00000-of-00002.parquet", "train", "train"),
        ("data/train/a.jsonl", "train", "train"),
        ("train_sft-00000-of-00003-a3ecf92756993583.parquet", "train", "train_sft"),
        ("train_sft/data.arrow", "train", "train_sft"),
        ("math_train.jsonl", "train", "train"),
        ("train_00000_of_00004.jsonl", "train", "train"),
        ("train_part2.jsonl", "train", "train"),
        ("train_1.jsonl", "train", "train"),
        ("TRAIN.jsonl", "train", "train"),
        ("train_1.jsonl", "train_1", "train_1"),
        ("trainer.jsonl", "train", ""),
        ("restrain.jsonl", "train", ""),
        ("contest.jsonl", "test", ""),
        ("validation.jsonl", "valid", ""),
    ],
)
def test_the_name_of_a_split(path: str, word: str, name: str) -> None:
    assert name_of(Path(path), word) == name


def test_several_splits_are_not_taken_as_one(tmp_path: Path) -> None:
    """As on the hub, where 'train' is none of them."""
    names = [f"data/{split}-00000-of-00001.parquet" for split in ("train_sft", "train_gen", "test_sft", "test_gen")]
    path = folder(tmp_path, *names)
    assert refused(path) == (
        "r.yaml:1: the folder F has several splits for 'train': train_gen, train_sft; "
        "name one: [{path: …, split: train_gen}], or each as a set of its own"
    )
    assert refused(path, "train") == refused(path)
    assert "several splits for 'test': test_gen, test_sft" in refused(path, role="eval")
    assert chosen(path, "train_sft") == names[:1]
    assert chosen(path, "test_gen", "eval") == names[3:]
    assert refused(path, "nope").endswith("has no split 'nope'; it has train_gen, train_sft, test_gen, test_sft")


def test_a_split_by_its_whole_name_comes_before_longer_ones(tmp_path: Path) -> None:
    path = folder(tmp_path, "train.jsonl", "train_more.jsonl")
    assert "several splits for 'train': train, train_more" in refused(path)
    assert chosen(path, "train") == ["train.jsonl"]
    assert chosen(path, "train_more") == ["train_more.jsonl"]


def test_pieces_of_one_split_stay_together(tmp_path: Path) -> None:
    names = ["code_train.jsonl", "math_train.jsonl", "train/a.jsonl", "train_00000_of_00002.jsonl", "train_1.jsonl"]
    assert chosen(folder(tmp_path, *names, "test.jsonl")) == names
    only = folder(tmp_path / "only", "train_sft-00000.jsonl", "train_sft-00001.jsonl")
    assert chosen(only) == chosen(only, "train") == ["train_sft-00000.jsonl", "train_sft-00001.jsonl"]


@pytest.mark.parametrize("name", ["test", "validation", "valid", "val", "dev", "eval", "test_sft", "my-test"])
def test_nobody_trains_on_a_test_unasked(tmp_path: Path, name: str) -> None:
    path = folder(tmp_path, f"{name}.jsonl")
    split = name.removeprefix("my-")
    assert refused(path) == (
        f"r.yaml:1: the folder F holds rows for evaluation alone: {split}; "
        f"to train on them, name the split: [{{path: …, split: {split}}}]"
    )
    assert chosen(path, split) == chosen(path, role="eval") == [f"{name}.jsonl"]
    folder(tmp_path, "rows.jsonl", "contest.jsonl")
    assert chosen(path) == ["contest.jsonl", "rows.jsonl"]
    assert chosen(path, role="eval") == [f"{name}.jsonl"]
