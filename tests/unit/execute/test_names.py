"""All names of a layer move, or none."""

from __future__ import annotations

import pytest

from strix_finetune.errors import EngineError, WorkError
from strix_finetune.events import Emit, LayerDone, Notice, SmokeResult
from strix_finetune.execute import Built, Failed, Reused
from strix_finetune.plan import Step
from tests.unit.execute.site import Site


def test_when_one_name_cannot_move_none_does(site: Site) -> None:
    site.wanted = ("top",)
    site.run()
    before = dict(site.engine.refs)
    site.images.write("images/top/Dockerfile.j2", "FROM {{ parent }}\nRUN new\n")

    def refuse(image: str, ref: str) -> None:
        if ref == "localhost/strix-finetune:gfx1151" and image not in before.values():
            raise EngineError("the store is read-only")

    site.engine.on_tag = refuse
    outcomes = site.run()
    assert isinstance(outcomes["top"], Failed)
    assert site.engine.refs == before
    assert set(site.engine.store) == set(before.values())


def test_a_name_that_cannot_be_put_back_is_said(site: Site) -> None:
    site.run()
    held = set(site.engine.store)
    site.images.write("images/top/Dockerfile.j2", "FROM {{ parent }}\nRUN new\n")

    def refuse(image: str, ref: str) -> None:
        if image in held or ref == "localhost/strix-finetune:gfx1151":
            raise EngineError("the store is read-only")

    site.engine.on_tag = refuse
    site.run()
    message = [event.message for event in site.events if isinstance(event, LayerDone) and event.outcome == "failed"]
    assert "the name localhost/strix-finetune/top:gfx1151 could not be put back: the store is read-only" in message[0]


def test_lost_names_are_set_again(site: Site) -> None:
    site.run()
    good = dict(site.engine.refs)
    del site.engine.refs["localhost/strix-finetune:gfx1151"]
    site.engine.calls.clear()
    site.events.clear()
    assert list(map(type, site.run().values())) == [Reused] * 4
    assert site.engine.refs == good
    assert site.built == []
    assert site.finished.image == "localhost/strix-finetune:gfx1151"


def test_lost_names_that_cannot_be_set(site: Site) -> None:
    site.run()
    del site.engine.refs["localhost/strix-finetune:gfx1151"]

    def refuse(image: str, ref: str) -> None:
        raise EngineError("the store is read-only")

    site.engine.on_tag = refuse
    site.events.clear()
    outcomes = site.run()
    assert isinstance(outcomes["top"], Failed)
    assert (site.finished.failed, site.finished.reused, site.finished.image) == (1, 3, "")


def test_an_image_that_cannot_be_removed_is_said(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def smoke_fails(step: Step, image: str, emit: Emit) -> tuple[SmokeResult, ...]:
        raise WorkError("bad")

    def refuse(image: str) -> None:
        raise EngineError("busy")

    site.on_smoke = smoke_fails
    monkeypatch.setattr(site.engine, "remove", refuse)
    outcomes = site.run()
    assert isinstance(outcomes["base"], Failed)
    said = next(event.message for event in site.events if isinstance(event, Notice))
    assert said.endswith("is left over: busy")


def test_a_size_that_the_engine_does_not_say_is_no_failure(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    original = site.engine.image

    def image(ref: str) -> object:
        if ref.startswith("sha256:"):
            raise EngineError("no")
        return original(ref)

    monkeypatch.setattr(site.engine, "image", image)
    assert isinstance(site.run()["top"], Built)
    assert site.done("top").size == 0
