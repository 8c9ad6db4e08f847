"""Which rows are trained on and which are kept: by weight, by share, by number, and the same everywhere."""

from __future__ import annotations

import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_train import plan
from strix_train.data.load import DataSet, Shape, load
from strix_train.data.mix import Rows, divide, whole
from strix_train.data.rows import Document, Row
from strix_train.data.sample import Sample
from strix_train.errors import InputError


def made(*contents: int) -> DataSet:
    """A set whose rows have these contents; only its digests are looked at."""
    return DataSet(Path("x"), (), Shape(), "text", array("Q", contents), "")


def taken(rows: Rows) -> list[list[int]]:
    """The contents that are taken, with repeats, set by set."""
    return [
        [content for content, count in zip(each.digests, times or b"\1" * len(each), strict=True) for _ in range(count)]
        for each, times in zip(rows.sets, rows.times, strict=True)
    ]


def flat(lists: list[list[int]]) -> list[int]:
    """All entries of some lists."""
    return [each for inner in lists for each in inner]


_SETS = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=40), min_size=1, max_size=3)


@given(_SETS, st.floats(0.01, 0.99) | st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_a_split_holds_its_share_and_shares_no_content(contents: list[list[int]], split: float, seed: int) -> None:
    sets = [made(*each) for each in contents]
    train, held = divide(sets, [1.0] * len(sets), split, seed)
    assert held is not None
    mine, kept = flat(taken(train)), flat(taken(held))
    assert sorted(mine + kept) == sorted(flat(contents))
    assert not set(mine) & set(kept)
    total = len(mine) + len(kept)
    wanted = min(total, max(1, round(split * total)) if split < 1 else int(split))
    most = max(kept.count(content) for content in kept)
    assert wanted <= len(kept) < wanted + most
    assert (len(train), len(held)) == (len(mine), len(kept))


@given(_SETS, st.lists(st.floats(0.1, 5), min_size=3, max_size=3), st.integers(0, 2**32 - 1))
def test_weights_say_how_often(contents: list[list[int]], weights: list[float], seed: int) -> None:
    sets = [made(*each) for each in contents]
    train, held = divide(sets, weights[: len(sets)], None, seed)
    assert held is None
    for each, weight, got in zip(contents, weights, taken(train), strict=False):
        assert len(got) == int(weight) * len(each) + round((weight - int(weight)) * len(each))
        assert set(got) <= set(each)
        counts = [got.count(content) / each.count(content) for content in set(each)]
        assert all(int(weight) <= count <= int(weight) + 1 for count in counts)


def test_another_seed_keeps_other_rows() -> None:
    sets = [made(*range(1000))]
    kept = [flat(taken(divide(sets, [1.0], 0.1, seed)[1] or whole([]))) for seed in (1, 1, 2)]
    assert kept[0] == kept[1] != kept[2]
    assert len(set(kept[0]) & set(kept[2])) < 30
    # no end of the file is favoured
    assert 300 < sum(kept[0]) / len(kept[0]) < 700


def test_rows_keep_their_side_when_others_come(tmp_path: Path) -> None:
    """A row's side follows from its content, so that a longer file moves few rows."""
    before = set(flat(taken(divide([made(*range(1000))], [1.0], 0.1, 5)[1] or whole([]))))
    after = set(flat(taken(divide([made(*range(1100))], [1.0], 0.1, 5)[1] or whole([]))))
    assert len(before & after) > 85


def test_rows_come_as_often_as_they_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text("".join(f'{{"text": "{index}"}}\n' for index in range(5)))
    data = load(path, Shape(method="cpt"))
    rows, _ = divide([data], [2.0], None, 1)
    texts = [row.text for row in rows if isinstance(row, Document)]
    assert texts == [text for index in range(5) for text in (str(index), str(index))]
    assert [row.text for row in whole([data]) if isinstance(row, Document)] == list("01234")


@pytest.mark.parametrize(
    "after",
    ["012345", "0123", "01324", "0123x", "x1234", "0123 ", "01"],
    ids=["longer", "shorter", "swapped", "last", "first", "empty", "half"],
)
@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_rows_that_changed_since_they_were_checked(tmp_path: Path, after: str, weight: float) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text("".join(f'{{"text": "{each}"}}\n' for each in "01234"))
    rows, _ = divide([load(path, Shape(method="cpt"))], [weight], None, 1)
    assert len(tuple(rows)) == 5 * weight
    path.write_text("".join(f'{{"text": "{each}"}}\n' for each in after))
    seen: list[Row] = []
    with pytest.raises(InputError) as caught:
        list(map(seen.append, rows))
    assert str(caught.value) == f"{path}: has changed since it was checked; begin again"
    assert {row.text for row in seen if isinstance(row, Document)} <= set("01234")


def test_the_fingerprint_tells_what_is_taken() -> None:
    sets = [made(1, 2, 3)]
    prints = {
        divide(sets, [1.0], None, 1)[0].fingerprint,
        divide(sets, [2.0], None, 1)[0].fingerprint,
        divide(sets, [1.0], 1, 1)[0].fingerprint,
        divide([made(1, 3, 2)], [1.0], None, 1)[0].fingerprint,
    }
    assert len(prints) == 4


def test_every_process_chooses_the_same(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text("".join(f'{{"prompt": "{n}", "completion": "c"}}\n' for n in range(200)))
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "model: o/n\ndata: [{path: d.jsonl, weight: 1.5}]\nschedule: {steps: 1}\nevaluation: {split: 0.1}\n"
    )
    here = plan.make(str(recipe), with_backend=False)
    code = (
        "from strix_train import plan\n"
        f"made = plan.make({str(recipe)!r}, with_backend=False)\n"
        "print(made.train.fingerprint, made.evaluation.fingerprint)"
    )
    for seed in ("0", "1"):
        env = {"PYTHONHASHSEED": seed, "PATH": ""}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
        assert here.evaluation is not None
        assert done.stdout.split() == [here.train.fingerprint, here.evaluation.fingerprint]
    assert len(here.evaluation) == 20
    assert len(here.train) == 270


@pytest.mark.parametrize(
    ("split", "rows", "sentence"),
    [
        (0.5, 1, "r.yaml:4:14: no row is left to train on: there is 1 row; keep fewer rows for evaluation"),
        (10, 10, "r.yaml:4:14: no row is left to train on: there are 10 rows"),
    ],
)
def test_a_split_that_leaves_nothing(tmp_path: Path, split: float, rows: int, sentence: str) -> None:
    (tmp_path / "d.jsonl").write_text("".join(f'{{"prompt": "{n}", "completion": "c"}}\n' for n in range(rows)))
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"model: o/n\ndata: d.jsonl\nschedule: {{steps: 1}}\nevaluation: {{split: {split}}}\n")
    with pytest.raises(InputError, match=sentence):
        plan.make(str(recipe), with_backend=False)


@given(st.integers(1, 3000), st.integers(16, 64))
def test_a_sample_is_even(count: int, most: int) -> None:
    sample: Sample[int] = Sample(most)
    for index in range(count):
        sample.add(index)
    assert sample.seen == count
    assert sample.items == sorted(sample.items)
    assert min(count, most // 3) <= len(sample.items) <= most
    gaps = [b - a for a, b in zip(sample.items, [*sample.items[1:], count], strict=True)]
    assert max(gaps) <= 4 * count / len(sample.items) + 1


@pytest.mark.parametrize("period", [2, 3, 4, 5, 8, 16])
def test_a_sample_follows_no_period_of_the_stream(period: int) -> None:
    sample: Sample[int] = Sample(256)
    for index in range(20_000):
        sample.add(index % period)
    share = sample.items.count(0) / len(sample.items)
    assert share == pytest.approx(1 / period, rel=0.35)
