"""Move the names of one layer: all of them or none."""

from __future__ import annotations

from collections.abc import Sequence

from strix_finetune.engine.base import Engine
from strix_finetune.errors import EngineError


def move_tags(engine: Engine, image: str, tags: Sequence[str]) -> None:
    """Point every tag at `image`. When one cannot be moved, those already moved go back to where they were."""
    before: dict[str, str | None] = {}
    try:
        for tag in tags:
            held = engine.image(tag)
            before[tag] = held.id if held else None
            engine.tag(image, tag)
    except BaseException as error:
        for tag, old in reversed(before.items()):
            try:
                if old is None:
                    engine.untag(tag)
                else:
                    engine.tag(old, tag)
            except EngineError as second:
                error.add_note(f"{tag} could not be put back: {second}")
        raise
