"""Names, labels and history of images; the same answers from both engines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from strix_finetune.engine.base import BuildRequest
from strix_finetune.engine.size import compressed_size
from strix_finetune.errors import EngineError, InputError
from tests.engine.conftest import LABEL, PREFIX

if TYPE_CHECKING:
    from tests.engine.conftest import Bench

pytestmark = pytest.mark.engine

NAME = f"{PREFIX}/names"


def make(bench: Bench) -> str:
    return bench.build(f"FROM {{base}}\nRUN echo {time.time()} > /unique\n")


def test_a_localhost_name_stays_a_localhost_name(bench: Bench) -> None:
    image = make(bench)
    bench.engine.tag(image, f"{NAME}:a")
    found = bench.engine.image(f"{NAME}:a")
    assert found is not None
    assert (found.id, found.tags) == (image, (f"{NAME}:a",))
    bench.engine.untag(f"{NAME}:a")


def test_a_tag_moves_in_one_step_and_the_old_image_stays(bench: Bench) -> None:
    old, new = make(bench), make(bench)
    bench.engine.tag(old, f"{NAME}:moving")
    bench.engine.tag(new, f"{NAME}:moving")
    moved, left = bench.engine.image(f"{NAME}:moving"), bench.engine.image(old)
    assert moved is not None
    assert moved.id == new
    assert left is not None
    assert left.tags == ()
    bench.engine.untag(f"{NAME}:moving")


def test_a_short_name_is_refused(bench: Bench) -> None:
    with pytest.raises(InputError, match="does not say which registry"):
        bench.engine.tag(bench.base, "short:1")


def test_tagging_what_is_not_there_is_an_error(bench: Bench) -> None:
    with pytest.raises(EngineError, match="could not tag"):
        bench.engine.tag("sha256:" + "0" * 64, f"{NAME}:none")


def test_the_last_name_takes_the_image_along(bench: Bench) -> None:
    image = make(bench)
    bench.engine.tag(image, f"{NAME}:one")
    bench.engine.tag(image, f"{NAME}:two")
    bench.engine.untag(f"{NAME}:one")
    left = bench.engine.image(image)
    assert left is not None
    assert left.tags == (f"{NAME}:two",)
    bench.engine.untag(f"{NAME}:two")
    assert bench.engine.image(image) is None
    bench.engine.untag(f"{NAME}:two")  # a second time is no error


def test_a_name_goes_even_while_a_container_uses_the_image(bench: Bench) -> None:
    image = make(bench)
    bench.engine.tag(image, f"{NAME}:used")
    name = f"strix-engine-test-{time.time_ns()}"
    bench.engine.api.create_container(image, ["true"], name=name)
    try:
        bench.engine.untag(f"{NAME}:used")
        assert bench.engine.image(f"{NAME}:used") is None
        assert bench.engine.api.inspect_container(name)["Name"].lstrip("/") == name
        if bench.engine.image(image) is not None:
            bench.engine.remove(image)  # in use: left alone silently
    finally:
        bench.engine.api.remove_container(name, force=True)
    bench.engine.remove(image)
    assert bench.engine.image(image) is None


def test_remove_leaves_named_images_alone(bench: Bench) -> None:
    bench.engine.remove(bench.base)
    assert bench.engine.image(bench.base) is not None
    bench.engine.remove("sha256:" + "0" * 64)


def test_images_by_label_each_once_with_all_names(bench: Bench) -> None:
    from tests.engine.conftest import context

    mark = f"m{time.time_ns()}"
    key = f"{LABEL}-key"
    labels = {key: mark, LABEL: "layer"}
    image = bench.engine.build(BuildRequest(context(f"FROM {bench.base}\n"), labels), lambda event: None)
    bench.engine.tag(image, f"{NAME}:label-a")
    bench.engine.tag(image, f"{NAME}:label-b")
    found = bench.engine.images(f"{key}={mark}")
    assert [(entry.id, sorted(entry.tags)) for entry in found] == [(image, [f"{NAME}:label-a", f"{NAME}:label-b"])]
    assert found[0].labels[key] == mark
    single = bench.engine.image(image)
    assert single is not None
    assert found[0].size == single.size
    assert image in [entry.id for entry in bench.engine.images(key)]
    assert bench.engine.images(f"{key}=other") == []
    bench.engine.untag(f"{NAME}:label-a")
    bench.engine.untag(f"{NAME}:label-b")


def test_history_is_newest_first_with_sizes(bench: Bench) -> None:
    image = bench.build(f"FROM {{base}}\nRUN echo {time.time()}; head -c 300000 /dev/zero > /zeros\n")
    layers = bench.engine.history(image)
    own = next(layer for layer in layers if "zeros" in layer.created_by)
    assert 300_000 <= own.size < 400_000
    assert layers.index(own) < next(n for n, layer in enumerate(layers) if "COPY" in layer.created_by)


def test_what_is_not_there_is_none(bench: Bench) -> None:
    assert bench.engine.image("localhost/strix-engine-test/never:1") is None
    with pytest.raises(EngineError, match="could not read the layers"):
        bench.engine.history("localhost/strix-engine-test/never:1")


def test_the_compressed_size_is_smaller_than_the_image_and_grows_with_noise(bench: Bench) -> None:
    before = compressed_size(bench.engine, bench.base)
    base = bench.engine.image(bench.base)
    assert base is not None
    assert 0 < before < base.size
    noisy = bench.build(f"FROM {{base}}\nRUN echo {time.time()}; head -c 500000 /dev/urandom > /noise\n")
    grown = compressed_size(bench.engine, noisy) - before
    assert 500_000 <= grown < 530_000


def test_exporting_what_is_not_there_is_an_error(bench: Bench) -> None:
    with pytest.raises(EngineError, match="could not export"):
        b"".join(bench.engine.export("localhost/strix-engine-test/never:1"))
