"""Move the names of one layer: all of them or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strix_finetune.engine.base import Engine
from strix_finetune.errors import EngineError, Problem


def move_tags(engine: Engine, image: str, tags: Sequence[str]) -> None:
    """Point every tag at `image`. When one cannot be moved, those already moved go back to where they were."""
    before: dict[str, str | None] = {}
    try:
        for tag in tags:
            held = engine.image(tag)
            before[tag] = held.id if held else None
            engine.tag(image, tag)
    except BaseException as error:
        left = _put_back(engine, before)
        if left and isinstance(error, EngineError):
            raise EngineError([*error.problems, *left]) from error
        raise


def _put_back(engine: Engine, before: Mapping[str, str | None]) -> list[Problem]:
    """Undo in reverse; what cannot be undone is said, not hidden."""
    left: list[Problem] = []
    for tag, old in reversed(list(before.items())):
        try:
            if old is None:
                engine.untag(tag)
            else:
                engine.tag(old, tag)
        except EngineError as error:
            left.append(Problem(f"the name {tag} could not be put back: {error}", cure="build again"))
    return left
