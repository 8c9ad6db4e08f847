"""Removing old images from real stores: what goes is gone, and nothing else is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from strix_finetune import names, prune_local
from strix_finetune.engine import stored
from strix_finetune.engine.base import BuildRequest
from strix_finetune.errors import EngineError
from strix_finetune.prune import Policy, freed
from tests.engine.conftest import LABEL, PREFIX, Bench, context

pytestmark = pytest.mark.engine
TARGET = f"test{os.getpid()}"
SIZE = 3_000_000


class Generations:
    """Images of one layer: each has a file of its own of some megabytes, on a layer that all of them have."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.made: list[str] = []
        # an image of cached steps is as old as these: an earlier run's would make it an old one
        self.common = f"RUN echo {time.time_ns()} > /common\n"

    def build(self, number: int, *tags: str) -> str:
        key = f"{number:012d}" + "0" * 52
        text = f"FROM {self.bench.base}\n{self.common}"
        text += f"RUN dd if=/dev/zero of=/own{number} bs=1000 count={SIZE // 1000} && echo {number} >> /own{number}\n"
        labels = {LABEL: "layer", names.KEY: key, names.LAYER: "app", names.TARGET: TARGET, names.CHANNEL: "debian"}
        image = self.bench.engine.build(BuildRequest(context(text), labels), lambda event: None)
        for tag in (names.layer_ref("app", TARGET, key), *tags):
            self.bench.engine.tag(image, tag)
        self.made.append(image)
        return image

    def plan(self, policy: Policy) -> prune_local.Plan:
        return prune_local.plan(self.bench.engine, policy, time.time())

    def going(self, policy: Policy) -> list[str]:
        """Of these images: the store may be shared."""
        return [verdict.image.id for verdict in self.plan(policy).going if verdict.image.id in self.made]


@pytest.fixture
def made(bench: Bench) -> Iterator[Generations]:
    found = Generations(bench)
    yield found
    for image in found.made:
        held = bench.engine.image(image)
        for tag in held.tags if held else ():
            bench.engine.untag(tag)
        with suppress(EngineError):
            bench.engine.remove(image)


def test_old_images_go_and_what_is_referred_to_stays(made: Generations, bench: Bench, tmp_path: Path) -> None:
    old = made.build(1)
    used = made.build(2)
    named = made.build(3, f"{PREFIX}/mine:1")
    current = made.build(4, names.moving_ref("app", TARGET))
    assert made.going(Policy(keep=4, older=0)) == []
    assert made.going(Policy(keep=0, older=3600)) == []
    container = bench.engine.api.create_container(used, ["sh"], labels={LABEL: "run"})["Id"]
    try:
        everything = Policy(keep=0, older=0)
        assert made.going(everything) == [old]
        going = [verdict for verdict in made.plan(everything).going if verdict.image.id == old]
        images = stored.images(bench.engine)
        lost = freed(images, going, lambda image: stored.layer_sizes(bench.engine, image))
        # its own file, and not what all of them have
        assert SIZE <= lost < SIZE + 100_000
        done = prune_local.carry_out(bench.engine, going, tmp_path)
        assert [verdict.image.id for verdict in done.removed] == [old]
        assert not done.left
        assert done.before
        assert done.after
        assert bench.engine.image(old) is None
        for image_id in (used, named, current):
            assert bench.engine.image(image_id) is not None
        assert bench.run("cat", "/own4", image=current)[0].exit_code == 0
    finally:
        bench.engine.api.remove_container(container, force=True)
    assert made.going(everything) == [used]


def test_an_image_that_something_else_stands_on_stays(made: Generations, bench: Bench) -> None:
    old = made.build(1)
    text = f"FROM {names.layer_ref('app', TARGET, '1'.zfill(12))}\nRUN echo more > /more\n"
    # its builder gave it no label of this project, and the parent's are inherited: so it needs a name
    above = bench.engine.build(BuildRequest(context(text), {LABEL: "layer"}), lambda event: None)
    bench.engine.tag(above, f"{PREFIX}/above:1")
    made.made.append(above)
    assert made.going(Policy(keep=0, older=0)) == []
    bench.engine.untag(f"{PREFIX}/above:1")
    assert old in made.going(Policy(keep=0, older=0))
