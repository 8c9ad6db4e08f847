"""What makes an image large, as a table and as a picture; which images one stands on."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from strix_finetune import names
from strix_finetune.cli.images import images
from strix_finetune.oci.lineage import parents
from strix_finetune.oci.treemap import Box, squarify, svg
from strix_finetune.oci.weights import weigh
from tests.unit.oci_images import ImageEngine, layer_tar

LIST = "var/lib/dpkg/info/big.list"
BASE = layer_tar({"usr/lib/big": "b" * 5000, LIST: "/usr/lib/big\n", "usr/lib/same": ("hard", "usr/lib/big")})
TOP = [layer_tar({"opt/x/tool": "t" * 700, "opt/x/waste": "w" * 300}), layer_tar({"opt/x/waste": None})]


def engine() -> ImageEngine:
    made = ImageEngine()
    base, top = f"{names.PREFIX}/base:cpu-{'a' * 12}", f"{names.PREFIX}:cpu"
    marks = {names.KEY: "a" * 64, names.LAYER: "base", names.TARGET: "cpu"}
    above = {
        names.KEY: "b" * 64,
        names.LAYER: "top",
        names.TARGET: "cpu",
        names.PARTS: '{"parent base":"aaaaaaaaaaaa"}',
    }
    made.hold(base, [BASE], Labels=marks)
    made.hold(top, [BASE, *TOP], Labels=above)
    made.add(marks, base)
    made.add(above, top)
    return made


def test_an_image_knows_what_it_stands_on() -> None:
    made = engine()
    assert parents(made, f"{names.PREFIX}:cpu") == (f"{names.PREFIX}/base:cpu-{'a' * 12}",)
    # one of that name that was built anew is not what the image stands on
    made.hold(f"{names.PREFIX}/base:cpu-{'a' * 12}", [layer_tar({"other": "x"})])
    made.store.clear()
    assert parents(made, f"{names.PREFIX}:cpu") == ()


def test_bytes_are_told_by_layer_and_by_package_or_folder() -> None:
    base, top = weigh(engine(), f"{names.PREFIX}:cpu").layers
    # two names of one file are one file
    assert [(row.name, row.size, row.files) for row in base.weights][:1] == [("deb big", 5000, 1)]
    assert (top.layer, top.size, top.hidden) == ("top", 700, 300)
    assert [(row.name, row.size) for row in top.weights] == [("/opt/x", 700)]


def test_the_command_shows_the_only_final_image_and_draws_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strix_finetune.engine.select.connect", lambda name, env: engine())
    picture = tmp_path / "why.svg"
    done = CliRunner().invoke(images, ["--why-size", "--treemap", str(picture)], standalone_mode=False)
    assert done.return_value == 0, done.exception
    assert "0.0 MB that its own steps removed again" in done.output
    assert "files  deb big" in done.output
    titles = [node.text for node in ElementTree.parse(picture).iter() if node.tag.endswith("title")]
    assert "deb big: 0.0 MB" in titles
    done = CliRunner().invoke(images, ["--why-size", "cpu", "--json"], standalone_mode=False)
    assert [layer["layer"] for layer in json.loads(done.output)["layers"]] == ["base", "top"]
    done = CliRunner().invoke(images, ["--why-size", "gfx9"], standalone_mode=False)
    assert "there is no image gfx9 here" in str(done.exception)
    done = CliRunner().invoke(images, ["--treemap", str(picture)], standalone_mode=False)
    assert "give both" in str(done.exception)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=12).map(lambda sizes: sorted(sizes, reverse=True)))
def test_rectangles_fill_the_box_in_proportion_and_do_not_overlap(sizes: list[int]) -> None:
    box = Box(10, 20, 300, 200)
    made = squarify(sizes, box)
    for size, one in zip(sizes, made, strict=True):
        assert one.width * one.height == pytest.approx(60_000 * size / sum(sizes), rel=1e-6, abs=1e-6)
        assert 10 - 1e-6 <= one.x <= one.x + one.width <= 310 + 1e-6
        assert 20 - 1e-6 <= one.y <= one.y + one.height <= 220 + 1e-6
    for one, other in itertools.combinations(made, 2):
        across = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
        down = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
        assert across < 1e-4 or down < 1e-4


def test_equal_sizes_become_squares() -> None:
    assert {(round(box.width, 6), round(box.height, 6)) for box in squarify([1, 1, 1, 1], Box(0, 0, 2, 2))} == {(1, 1)}


def test_a_name_cannot_break_the_picture() -> None:
    made = ImageEngine()
    made.hold("x<&>y", [layer_tar({'srv/"<b>/f': "x" * 100})])
    ElementTree.fromstring(svg(weigh(made, "x<&>y")))
