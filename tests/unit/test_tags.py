"""All names of a layer move, or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune.errors import EngineError
from strix_finetune.tags import move_tags
from tests.fakes import FakeEngine

TAGS = ["r/a:1", "r/a:2", "r/a:3"]


@given(st.lists(st.sampled_from([None, "old", "other", "new"]), min_size=3, max_size=3), st.integers(0, 3))
def test_all_or_none(held: list[str | None], broken: int) -> None:
    engine = FakeEngine()
    images = {name: engine.add({"k": name}, f"keep/{name}:x") for name in ("old", "other", "new")}
    engine.refs.update({tag: images[name] for tag, name in zip(TAGS, held, strict=True) if name})
    before = dict(engine.refs)
    count = 0

    def refuse(image: str, ref: str) -> None:
        nonlocal count
        count += 1
        if count == broken + 1:
            raise EngineError("no")

    engine.on_tag = refuse
    if broken < 3:
        with pytest.raises(EngineError, match=r"^no$"):
            move_tags(engine, images["new"], TAGS)
        assert engine.refs == before
    else:
        move_tags(engine, images["new"], TAGS)
        assert engine.refs == before | dict.fromkeys(TAGS, images["new"])


def test_an_interrupt_puts_them_back_as_well() -> None:
    engine = FakeEngine()
    image = engine.add({}, "keep/x:1")

    def interrupt(image: str, ref: str) -> None:
        if ref == TAGS[1]:
            raise KeyboardInterrupt

    engine.on_tag = interrupt
    with pytest.raises(KeyboardInterrupt):
        move_tags(engine, image, TAGS)
    assert set(engine.refs) == {"keep/x:1"}


def test_nothing_to_move() -> None:
    engine = FakeEngine()
    move_tags(engine, "sha256:none", [])
    assert engine.calls == []
