"""Which images may go, and what that gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune import cli, names, prune_local
from strix_finetune.engine import stored
from strix_finetune.engine.base import Engine, Layer
from strix_finetune.engine.stored import Stored, Use, layer_sizes
from strix_finetune.errors import InputError
from strix_finetune.prune import Policy, decide, freed, ours, seconds
from strix_finetune.supply import attest
from tests.fakes import FakeEngine

DAY = 86400.0
NOW = 1000 * DAY
ALL = Policy(keep=0, older=0.0)


def image(
    layer: str, number: int, *tags: str, age: float = 30, layers: str = "", parent: str = "", target: str = "cpu"
) -> Stored:
    """`layers`: one letter a layer; `age` in days."""
    key = f"{number:012d}" + "0" * 52
    labels = {names.KEY: key, names.LAYER: layer, names.TARGET: target, names.CHANNEL: "debian"}
    if parent:
        labels[names.PARTS] = json.dumps({parent.partition("=")[0]: parent.partition("=")[2]})
    named = tuple(tag.replace("KEY", names.layer_ref(layer, target, key)) for tag in tags)
    return Stored(f"sha256:{layer}{target}{number:050d}", named, labels, 100, NOW - age * DAY, tuple(layers))


def going(images: list[Stored], *uses: Use, policy: Policy = ALL) -> list[Stored]:
    return [verdict.image for verdict in decide(images, uses, policy, NOW) if not verdict.keep]


def test_what_has_a_name_that_moves_or_that_somebody_gave_stays() -> None:
    current = image("app", 3, "KEY", names.moving_ref("app", "cpu"), names.final_ref("cpu"))
    mine = image("app", 2, "KEY", "localhost/my-own:1")
    old = image("app", 1, "KEY")
    nameless = image("app", 0)
    assert going([current, mine, old, nameless]) == [nameless, old]
    [first, *_] = decide([current], [], ALL, NOW)
    assert first.keep == f"named {names.final_ref('cpu')}"


def test_an_image_that_several_targets_share_has_a_name_of_its_key_for_each() -> None:
    shared = image("base", 1, "KEY", f"{names.PREFIX}/base:gfx1100-000000000001")
    assert going([shared]) == [shared]
    other = image("base", 2, "KEY", f"{names.PREFIX}/base:gfx1100-000000000001")
    assert going([other]) == []


def test_what_a_container_was_made_of_stays() -> None:
    old = image("app", 1, "KEY")
    assert going([old], Use(old.id, "strix")) == []
    [verdict] = decide([old], [Use(old.id, "strix")], ALL, NOW)
    assert verdict.keep == "the container strix was made of it"


def test_the_newest_of_each_layer_and_target_stay() -> None:
    images = [image("app", number, "KEY", age=10 - number) for number in range(5)]
    other = image("app", 7, "KEY", age=20, target="gfx1151")
    policy = Policy(keep=2, older=0.0)
    assert going([*images, other], policy=policy) == [images[2], images[1], images[0]]


def test_what_is_young_stays() -> None:
    policy = Policy(keep=0, older=7 * DAY)
    young, old = image("app", 2, "KEY", age=6.9), image("app", 1, "KEY", age=7.1)
    assert going([young, old], policy=policy) == [old]


def test_what_may_be_in_the_middle_of_its_tests_stays() -> None:
    nameless = image("app", 1, age=0.5 / 24)
    assert going([nameless]) == []
    assert going([image("app", 1, age=1.1 / 24)])


def test_what_kept_images_stand_on_stays() -> None:
    base = image("base", 1, "KEY", layers="a")
    torch = image("torch", 1, "KEY", layers="ab", parent="parent base=000000000001")
    app = image("app", 1, "KEY", names.final_ref("cpu"), layers="abc", parent="parent torch=000000000001")
    assert going([base, torch, app]) == []
    # by the label alone: a pulled image may have other layers
    flat = image("app", 1, "KEY", names.final_ref("cpu"), layers="xyz", parent="parent torch=000000000001")
    assert going([base, torch, flat]) == []
    elsewhere = image("app", 1, names.final_ref("gfx1151"), parent="parent torch=000000000001", target="gfx1151")
    assert going([base, torch, elsewhere]) == [base, torch]


def test_what_other_peoples_images_stand_on_stays_and_those_are_not_looked_at() -> None:
    base = image("base", 1, "KEY", layers="a")
    foreign = Stored("sha256:foreign", (), {}, 1, 0.0, ("a", "z"))
    assert not ours(foreign)
    assert going([base, foreign]) == []
    assert [verdict.image for verdict in decide([base, foreign], [], ALL, NOW)] == [base]
    assert going([base, Stored("sha256:foreign", (), {}, 1, 0.0, ("z", "a"))]) == [base]


@pytest.mark.parametrize("parts", ["", "[]", "not json", "[" * 100000])
def test_a_label_that_somebody_else_wrote(parts: str) -> None:
    upper = image("app", 1, names.final_ref("cpu"))
    upper = Stored(upper.id, upper.tags, {**upper.labels, names.PARTS: parts}, 1, upper.created, ())
    base = image("base", 1, "KEY")
    assert going([upper, base]) == [base]


def test_bytes_that_only_what_goes_has() -> None:
    sizes = {"a": 1000, "b": 100, "c": 10, "d": 1}
    kept = image("base", 9, "KEY", names.moving_ref("base", "cpu"), layers="a")
    gone = [image("app", 1, "KEY", layers="abc"), image("app", 2, "KEY", layers="abd")]
    images = [kept, *gone]
    verdicts = decide(images, [], ALL, NOW)
    # b is there once, whoever has it
    assert freed(images, verdicts, lambda one: [sizes[layer] for layer in one.layers]) == 111
    assert freed(images, decide(images, [], Policy(9, 0), NOW), lambda one: []) == 0


LAYERS = st.text("ab", max_size=4)


@given(st.lists(st.tuples(LAYERS, st.booleans(), st.floats(0, 20)), max_size=8), st.integers(0, 3), st.floats(0, 20))
def test_nothing_goes_that_something_kept_stands_on(
    rows: list[tuple[str, bool, float]], keep: int, older: float
) -> None:
    images = [
        image("app", number, "KEY", *[names.final_ref("cpu")] * named, age=age, layers=layers)
        for number, (layers, named, age) in enumerate(rows)
    ]
    verdicts = decide(images, [], Policy(keep, older * DAY), NOW)
    kept = [verdict.image for verdict in verdicts if verdict.keep]
    lost = [verdict.image for verdict in verdicts if not verdict.keep]
    assert len(kept) >= min(keep, len(images))
    for one in lost:
        assert one.tags
        assert NOW - one.created >= older * DAY
        assert not any(one.layers and other.layers[: len(one.layers)] == one.layers for other in kept)
    held = {other.layers[:n] for other in kept for n in range(1, len(other.layers) + 1)}
    gone = {one.layers[:n] for one in lost for n in range(1, len(one.layers) + 1)} - held
    assert freed(images, verdicts, lambda one: [1] * len(one.layers)) == len(gone)


@pytest.mark.parametrize(("text", "found"), [("0", 0), ("36h", 36 * 3600), ("14d", 14 * DAY), ("2w", 14 * DAY)])
def test_ages(text: str, found: float) -> None:
    assert seconds(text) == found


@pytest.mark.parametrize("text", ["", "7", "-1d", "1.5d", "1m", "d", "12345678d"])
def test_what_is_no_age(text: str) -> None:
    with pytest.raises(InputError, match="is no age; write"):
        seconds(text)


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([("LABEL a=b", 0), ("COPY x", 5), ('/bin/sh -c #(nop)  CMD ["x"]', 0), ("RUN make", 7)], [7, 5]),
        ([("WORKDIR /x", 0), ("COPY x", 5), ("RUN make", 7)], [7, 5]),
        ([("RUN true", 0), ("RUN make", 7)], [7, 0]),
        ([("", 9)], [0, 9]),
    ],
)
def test_sizes_of_layers_from_a_history(steps: list[tuple[str, int]], found: list[int]) -> None:
    engine = FakeEngine(layers={"sha256:x": [Layer(text, size) for text, size in steps]})
    held = Stored("sha256:x", (), {}, 1, 0.0, ("a", "b"))
    assert layer_sizes(cast(Engine, engine), held) == found


def set_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[FakeEngine, list[Stored]]:
    """A store with an old image, a named one, and one that a container holds on to when it is to go."""
    engine = FakeEngine()
    rows = []
    for number, tags in ((1, ["KEY"]), (2, ["KEY", names.final_ref("cpu")]), (3, ["KEY"])):
        made = image("app", number, *tags)
        identity = engine.add(made.labels, *made.tags)
        rows.append(Stored(identity, made.tags, made.labels, 1000, 0.0, (str(number),)))
    monkeypatch.setattr("strix_finetune.engine.select.connect", lambda kind, env: engine)
    monkeypatch.setattr(stored, "images", lambda engine: rows)
    monkeypatch.setattr(stored, "uses", lambda engine: [])
    monkeypatch.setattr(stored, "used", lambda engine: 5000)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return engine, rows


def test_nothing_is_touched_without_yes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, _ = set_up(monkeypatch, tmp_path)
    assert cli.main(["prune", "--keep", "0", "--older-than", "0"]) == 0
    said = capsys.readouterr().out
    assert f"keep    {names.final_ref('cpu')}: named {names.final_ref('cpu')}" in said
    assert "2 images, 0.0 MB that nothing else has; add --yes to remove them" in said
    assert not engine.calls
    assert len(engine.store) == 3


def test_with_yes_they_go_and_what_was_signed_about_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, rows = set_up(monkeypatch, tmp_path)
    state = tmp_path / "strix-finetune"
    for row in rows:
        attest.save([b"{}"], attest.path(state, row.id))
    untag = engine.untag
    # a container was made of the third one meanwhile
    monkeypatch.setattr(engine, "untag", lambda ref: None if ref in rows[2].tags else untag(ref))
    assert cli.main(["prune", "--keep", "0", "--older-than", "0", "--yes", "--json"]) == 1
    out, err = capsys.readouterr()
    told: dict[str, Any] = json.loads(out)
    assert {row["id"] for row in told["images"] if row["removed"]} == {rows[0].id}
    assert (told["size"], told["before"], told["after"]) == (2000, 5000, 5000)
    assert "is still there: something has begun to use it" in err
    assert set(engine.store) == {rows[1].id, rows[2].id}
    assert [attest.path(state, row.id).exists() for row in rows] == [False, True, True]


def test_an_engine_that_refuses_is_told_and_the_others_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from strix_finetune.errors import EngineError

    engine, rows = set_up(monkeypatch, tmp_path)

    def untag(ref: str) -> None:
        if ref in rows[0].tags:
            raise EngineError("it is busy")
        FakeEngine.untag(engine, ref)

    monkeypatch.setattr(engine, "untag", untag)
    found = prune_local.plan(engine, ALL, NOW)
    done = prune_local.carry_out(engine, found.going, tmp_path)
    assert [(verdict.image.id, why) for verdict, why in done.left] == [(rows[0].id, "it is busy")]
    assert [verdict.image.id for verdict in done.removed] == [rows[2].id]
