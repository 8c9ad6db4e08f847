"""Which smoke tests an image has passed: its label, and what was recorded since."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from strix_finetune import cli, names, tested
from strix_finetune.engine.base import Image
from strix_finetune.events import SmokeResult
from strix_finetune.model import Keyed, Stack
from strix_finetune.oci.descriptor import CONFIG, Content, Packed, image_manifest
from strix_finetune.oci.layout import Layout
from strix_finetune.plan import tags_of
from tests.conftest import Images
from tests.fakes import FakeEngine
from tests.unit.registry_double import double


@pytest.fixture
def site(images: Images) -> Images:
    test = '[[smoke]]\nfile = "smoke/{}.sh"\nscope = "{}"\nkind = "{}"\n'
    images.layer("base", test.format("down", "descendants", "static") + test.format("own", "layer", "static"))
    images.layer("app", 'parent = ["base"]\nfinal = true\n' + test.format("gpu", "layer", "device"))
    for path in ("base/smoke/down", "base/smoke/own", "app/smoke/gpu"):
        images.write(f"images/{path}.sh", f"#!/bin/sh\necho {path}\n", executable=True)
    return images


def image(layer: Keyed, number: int = 1, target: str = "gfx1151", label: str | None = None) -> Image:
    labels = {names.KEY: layer.key} | ({names.TESTS: label} if label is not None else {})
    return Image(f"sha256:{number}", (names.layer_ref(layer.name, target, layer.key),), labels, 1)


def known(site: Images, *images: Image) -> dict[str, tested.Tests]:
    return tested.known(site.root / "state", site.stack(), site.render().values(), images)


def record(site: Images, layer: str, number: int, *results: SmokeResult) -> Path:
    tested.record(site.root / "state", site.stack(), site.render()[layer], f"sha256:{number}", results)
    [path] = (site.root / "state/smoke/gfx1151").glob(f"{layer}-*")
    return path


def test_a_digest_is_of_the_script_and_its_kind(site: Images) -> None:
    def now(layer: str) -> dict[str, str]:
        stack: Stack = site.stack()
        return tested.digests(stack, layer)

    before = now("app")
    assert list(before) == ["base/down.sh", "app/gpu.sh"]
    assert list(now("base")) == ["base/down.sh", "base/own.sh"]
    site.write("images/base/smoke/own.sh", "#!/bin/sh\nexit 1\n")
    assert now("app") == before
    site.write("images/base/smoke/down.sh", "#!/bin/sh\nexit 1\n")
    changed = now("app")
    assert changed["base/down.sh"] != before["base/down.sh"]
    assert changed["app/gpu.sh"] == before["app/gpu.sh"]
    toml = (site.path / "app/layer.toml").read_text()
    site.write("images/app/layer.toml", toml.replace('"device"', '"static"'))
    assert now("app")["app/gpu.sh"] != before["app/gpu.sh"]


def test_tests_are_in_no_key(site: Images) -> None:
    before = site.render()["app"].key
    site.write("images/base/smoke/down.sh", "#!/bin/sh\nexit 1\n")
    assert site.render()["app"].key == before


def test_the_label_says_what_an_image_was_built_with(site: Images) -> None:
    app = site.render()["app"]
    tests = tested.digests(site.stack(), "app")
    assert known(site, image(app, label=tested.label(tests))) == {"sha256:1": tests}
    assert known(site, image(app)) == {}
    # the same key is also that of another target's image
    assert known(site, image(app, target="gfx1101", label=tested.label(tests))) == {}


@pytest.mark.parametrize("label", ["", "null", "[]", "{", '{"a": 1}', "[" * 100_000])
def test_a_label_that_is_none(site: Images, label: str) -> None:
    assert known(site, image(site.render()["app"], label=label)) == {}


def test_what_was_run_since_counts_for_that_image_alone(site: Images) -> None:
    base = site.render()["base"]
    old = tested.label({"base/down.sh": "old"})
    path = record(
        site,
        "base",
        1,
        SmokeResult("base", "base/own.sh", "static", "passed", "fine"),
        SmokeResult("base", "base/gpu.sh", "device", "not-run", "no GPU"),
    )
    tests = tested.digests(site.stack(), "base")
    assert known(site, image(base, 1, label=old)) == {"sha256:1": tests}
    assert known(site, image(base, 2, label=old)) == {"sha256:2": {"base/down.sh": "old"}}
    content = json.loads(path.read_text())
    assert content["static"] == [{"test": "base/own.sh", "state": "passed", "detail": "fine"}]
    assert content["device"] == [{"test": "base/gpu.sh", "state": "not-run", "detail": "no GPU"}]


def test_both_engines_images_are_remembered_but_not_all_there_ever_were(site: Images) -> None:
    for number in (1, 2, 3, 1, 4, 5):
        path = record(site, "base", number)
    assert list(json.loads(path.read_text())["images"]) == ["sha256:3", "sha256:1", "sha256:4", "sha256:5"]
    assert [found.name for found in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"images": []}', '{"images": {"sha256:1": 3}}', "\0"])
def test_a_record_that_is_none(site: Images, content: str) -> None:
    path = record(site, "base", 1)
    path.write_text(content)
    assert known(site, image(site.render()["base"])) == {}
    record(site, "base", 1)
    assert list(known(site, image(site.render()["base"]))) == ["sha256:1"]


INDEX_DIGEST = "sha256:index"
LOCK = """format = 1
channel = "debian"
target = "gfx1151"

[apt]
suite = "sid"

[apt.releases]
sid = { date = "2026-01-01T00:00:00Z", sha256 = "%s" }
"""


def test_nothing_is_pushed_that_has_not_passed_its_tests_of_today(
    site: Images, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site.write("images/locks/debian-gfx1151.toml", LOCK % ("0" * 64))
    engine = FakeEngine()
    stack, keyed = site.stack(), site.render()
    for name, layer in keyed.items():
        labels = {names.KEY: layer.key, names.TESTS: tested.label(tested.digests(stack, name))}
        engine.add(labels, *tags_of(layer, stack))
    packed: list[str] = []

    def export(engine: object, image: str, parents: Sequence[str], folder: Path, **more: object) -> Layout:
        config = Content.of(CONFIG, b"{}")
        made = {ref: Packed(image_manifest(config.descriptor, (), {}), config, ()) for ref in (*parents, image)}
        packed.extend(made)
        return Layout(folder, made)

    monkeypatch.setattr("strix_finetune.oci.layout.export", export)
    monkeypatch.setattr("strix_finetune.engine.select.connect", lambda kind, env: engine)
    monkeypatch.setenv("XDG_STATE_HOME", str(site.root / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.root / "cache"))
    with double() as served:
        where = ["--to", f"{served.address.removeprefix('http://')}/x/demo"]
        command = ["push", *where, "--images", str(site.path), "--target", "gfx1151", "--channel", "debian"]
        assert cli.main(command) == 0
        assert len(packed) == 2
        assert f"/x/demo:gfx1151@{INDEX_DIGEST}" in re.sub("sha256:.{64}", INDEX_DIGEST, capsys.readouterr().out)
        site.write("images/app/smoke/gpu.sh", "#!/bin/sh\nexit 1\n", executable=True)
        log = len(served.log)
        assert cli.main(command) == 1
        assert len(served.log) == log
    assert len(packed) == 2
    assert capsys.readouterr().err == (
        "error: the final image is up to date, smoke test app/gpu.sh changed; run 'strix-finetune build' first\n"
    )
