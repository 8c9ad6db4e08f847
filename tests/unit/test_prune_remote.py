"""Removing old releases and images from a registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from strix_finetune import cli, key, names, prune_remote
from strix_finetune.oci.descriptor import (
    CONFIG,
    INDEX,
    LAYER_TAR,
    MANIFEST,
    Content,
    Descriptor,
    canonical,
    digest_of,
    image_manifest,
)
from strix_finetune.prune import Policy
from strix_finetune.registry import referrers, release
from strix_finetune.registry.client import Registry
from tests.unit.registry_double import Double, double
from tests.unit.test_registry_client import registry

DAY = 86400.0
NOW = datetime(2026, 11, 30, tzinfo=UTC).timestamp()
ALL = Policy(keep=0, older=0.0)


@pytest.fixture
def served() -> Iterator[Double]:
    with double() as made:
        yield made


class Shop:
    """Pushes releases of two layers, as the driver does."""

    def __init__(self, client: Registry) -> None:
        self.client = client

    def image(self, layer: str, number: int, parents: dict[str, str], blobs: list[bytes], tag: str = "") -> Descriptor:
        """`number` makes its key another one."""
        record = {
            "format": key.FORMAT,
            "layer": layer,
            "platform": key.PLATFORM,
            "dockerfile": str(number),
            "files": {},
            "inputs": {},
            "parents": parents,
        }
        text = json.dumps(record)
        self.key = key.key_of(text)
        config = Content.of(CONFIG, f"{layer}{number}".encode())
        layers = [Content.of(LAYER_TAR, blob) for blob in blobs]
        for content in (config, *layers):
            self.client.upload(content, lambda size: None)
        annotations = {names.KEY: self.key, names.LAYER: layer, names.TARGET: "cpu", names.INPUTS: text}
        manifest = image_manifest(config.descriptor, tuple(one.descriptor for one in layers), annotations)
        return self.client.put_manifest(tag or release.key_tag(layer, "cpu", self.key), manifest, MANIFEST)

    def release(self, number: int, age: float, *tags: str, times: int = 1) -> str:
        """A base and an app on it, each with a blob of its own, and one that all have; returns the index's digest."""
        base = self.image("base", number, {}, [b"common" * times, b"b%d" % number * 100 * times])
        base_key = self.key
        app = self.image("app", number, {"base": base_key}, [b"common" * times, b"a%d" % number * 1000 * times])
        when = datetime.fromtimestamp(NOW - age * DAY, UTC)
        annotations = {names.TARGET: "cpu", names.CHANNEL: "debian", release.CREATED: when.isoformat()}
        index = release.make_index([app, base], annotations)
        for tag in (f"cpu-{when:%Y%m%d}", *tags):
            self.client.put_manifest(tag, index, INDEX)
        return digest_of(index)

    def plan(self, policy: Policy = ALL, seen: dict[str, float] | None = None) -> prune_remote.Plan:
        return prune_remote.decide(prune_remote.read(self.client), policy, NOW, seen or {})

    def going(self, policy: Policy = ALL) -> set[str]:
        return {verdict.name.split("-")[0] + verdict.name[-4:] for verdict in self.plan(policy).going}


@pytest.fixture
def shop(served: Double) -> Shop:
    return Shop(registry(served))


def test_an_old_release_goes_with_its_images(shop: Shop, served: Double) -> None:
    old = shop.release(1, 30)
    shop.release(2, 10, "cpu", "latest")
    plan = shop.plan()
    assert len(plan.verdicts) == 6
    gone = [verdict.name for verdict in plan.going]
    assert gone[0] == "cpu-20261031"
    assert sorted(name.split("-")[0] for name in gone[1:]) == ["app", "base"]
    # its own blobs and configurations, and not what the other has, too
    assert plan.size == len("base1") + len("app1") + 200 + 2000
    assert plan.before == 2 * plan.size + len("common")
    assert prune_remote.carry_out(shop.client, plan.going) == 3
    assert shop.client.manifest(old) is None
    left = served.tags("a/b")
    assert {"cpu", "latest", "cpu-20261120"} < left
    assert len(left) == 5
    assert not shop.plan().going


def test_what_has_a_name_that_moves_or_that_somebody_gave_stays(shop: Shop) -> None:
    shop.release(1, 50, "cpu-2.14.1")
    shop.release(2, 40, "stable")
    shop.release(3, 30, "cpu")
    assert not shop.plan().going
    assert [verdict.keep for verdict in shop.plan().verdicts[:3]] == ["named cpu", "named stable", "named cpu-2.14.1"]


def test_the_newest_and_the_young_stay(shop: Shop) -> None:
    for number, age in ((1, 40), (2, 30), (3, 20), (4, 3)):
        shop.release(number, age)
    assert [one.name for one in shop.plan(Policy(2, 0.0)).going if one.name.startswith("cpu")] == [
        "cpu-20261031",
        "cpu-20261021",
    ]
    assert [one.name for one in shop.plan(Policy(0, 7 * DAY)).going if one.name.startswith("cpu")] == [
        "cpu-20261110",
        "cpu-20261031",
        "cpu-20261021",
    ]


def test_an_image_in_a_release_that_stays_is_kept_and_what_it_is_made_of(shop: Shop) -> None:
    builder = shop.image("devel", 1, {}, [b"tools"])
    inner = shop.key
    rccl = shop.image("rccl", 1, {"devel": inner}, [b"rccl"])
    annotations = {names.TARGET: "cpu", names.CHANNEL: "debian", release.CREATED: "2026-01-01T00:00:00Z"}
    shop.client.put_manifest("cpu", release.make_index([rccl], annotations), INDEX)
    [verdict] = [one for one in shop.plan().verdicts if one.digest == builder.digest]
    assert verdict.keep == "rccl is made of it"
    assert not shop.plan().going


def test_what_may_be_in_the_middle_of_a_push_stays_until_it_was_seen_for_long(shop: Shop, tmp_path: Path) -> None:
    made = shop.image("app", 1, {}, [b"x"])
    policy = Policy(0, 7 * DAY)
    file = tmp_path / "state/seen.json"
    assert not prune_remote.plan(shop.client, policy, NOW, file).going
    assert json.loads(file.read_text()) == {made.digest: NOW}
    assert not prune_remote.plan(shop.client, policy, NOW + 6 * DAY, file).going
    plan = prune_remote.plan(shop.client, policy, NOW + 8 * DAY, file)
    assert [verdict.digest for verdict in plan.going] == [made.digest]
    prune_remote.carry_out(shop.client, plan.going)
    prune_remote.plan(shop.client, policy, NOW + 9 * DAY, file)
    assert json.loads(file.read_text()) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"x": "y"}', "[" * 100000])
def test_a_memory_that_cannot_be_read_begins_anew(text: str, tmp_path: Path) -> None:
    (tmp_path / "seen").write_text(text)
    assert prune_remote.since(tmp_path / "seen", frozenset({"x"}), 5.0) == {"x": 5.0}


def test_what_others_pushed_is_not_looked_at(shop: Shop) -> None:
    shop.release(1, 30)
    config = Content.of(CONFIG, b"{}")
    shop.client.upload(config, lambda size: None)
    foreign = image_manifest(config.descriptor, (), {})
    shop.client.put_manifest("foreign", foreign, MANIFEST)
    mine = next(image for image in prune_remote.read(shop.client).images if image.layer == "app")
    document = {"manifests": [Descriptor(MANIFEST, mine.digest, 10).as_json()]}
    shop.client.put_manifest("multi", canonical(document), INDEX)
    plan = shop.plan()
    assert not any(one.name in ("foreign", "multi") for one in plan.verdicts)
    assert {one.digest: one.keep for one in plan.verdicts}[mine.digest] == "something else refers to it"
    # the base that it is made of stays with it
    assert [one.name for one in plan.going] == ["cpu-20261031"]


def test_an_image_with_a_name_that_somebody_gave_stays(shop: Shop) -> None:
    shop.image("app", 1, {}, [b"x"], tag="mine")
    assert not shop.plan().going


def test_what_is_attached_goes_too(shop: Shop, served: Double) -> None:
    shop.release(1, 30)
    shop.release(2, 10, "cpu")
    images = prune_remote.read(shop.client).images
    for image in images:
        artifact = canonical(
            {"mediaType": MANIFEST, "subject": {"digest": image.digest}, "config": CONFIG_ROW, "layers": []}
        )
        shop.client.upload(Content.of(CONFIG, b"none"), lambda size: None)
        referrers.attach(shop.client, image.digest, artifact, "x/y")
    plan = shop.plan()
    assert prune_remote.carry_out(shop.client, plan.going) == 3
    gone = {verdict.digest for verdict in plan.going}
    for image in images:
        assert bool(referrers.attached(shop.client, image.digest)) == (image.digest not in gone)
        assert (referrers.tag(image.digest) in served.tags("a/b")) == (image.digest not in gone)
    assert not shop.plan().going


CONFIG_ROW = Content.of(CONFIG, b"none").descriptor.as_json()


def test_as_it_is_typed(
    shop: Shop, served: Double, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    shop.release(1, 3000)
    shop.release(2, 2900, "cpu")
    before = served.tags("a/b")
    place = f"{served.address.removeprefix('http://')}/a/b"
    command = ["prune", "--registry", place, "--keep", "0"]
    assert cli.main(command) == 0
    said = capsys.readouterr().out
    assert "keep    cpu cpu-" in said
    assert "3 releases and images, 0.0 MB of 0.0 MB that nothing else has; add --yes to remove them" in said
    assert served.tags("a/b") == before
    assert cli.main([*command, "--yes", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["removed"] == sum(not row["keep"] for row in told["manifests"]) == 3
    assert len(served.tags("a/b")) == 4
    assert cli.main([*command, "--yes"]) == 0
    assert "nothing to remove among 3 releases and images of" in capsys.readouterr().out
