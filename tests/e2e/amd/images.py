"""The targets that are tried, and the images of this run in Docker."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from strix_finetune import names
from strix_finetune.engine.base import Engine
from strix_finetune.engine.select import connect
from tests.standin.command import is_left_over, is_ours
from tests.standin.place import Place, Said

FIRST = "gfx1151"
OTHERS = ("gfx1100", "gfx1201", "gfx942", "gfx1030")


def remove_images() -> None:
    """What bears a name of this run, or of one that was killed; children first."""
    engine = connect("docker", os.environ)
    try:
        while ours := {image.id: tags for image in engine.images(names.KEY) if (tags := left_over(image.tags))}:
            for image, tags in ours.items():
                for tag in tags:
                    engine.untag(tag)
                engine.remove(image)
    finally:
        engine.close()


def left_over(tags: Iterable[str]) -> list[str]:
    return [tag for tag in tags if is_ours(tag) or is_left_over(tag)]


def moving(engine: Engine) -> dict[str, str]:
    """The names of this run's images → what they point to."""
    return {tag: image.id for image in engine.images(names.KEY) for tag in image.tags if is_ours(tag)}


def offline_build(place: Place, folder: Path, target: str, *layers: str) -> Said:
    """Build with a cache that knows nothing, and a server that is not asked."""
    place.amd.heal()
    env = {"XDG_CACHE_HOME": str(place.root / "empty-cache")}
    said = place.strix("build", *layers, "--offline", str(folder), "--json", target=target, env=env)
    assert said.code == 0, said.sentence[-4000:]
    assert place.amd.asked == []
    return said
