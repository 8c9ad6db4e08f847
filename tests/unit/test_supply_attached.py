"""What is signed about an image in a registry: attached, found again, checked after a pull."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strix_finetune import names
from strix_finetune.engine.base import Engine, Image
from strix_finetune.errors import InputError
from strix_finetune.oci import layout
from strix_finetune.oci.descriptor import CONFIG, EMPTY, LAYER_TAR, MANIFEST, Content, Packed, canonical
from strix_finetune.oci.layout import Layout
from strix_finetune.registry import referrers, release
from strix_finetune.registry.faults import Untrusted
from strix_finetune.supply import attached, attest, pushed
from strix_finetune.supply.envelope import sign
from strix_finetune.supply.verify import verify
from tests.conftest import Images
from tests.unit.registry_double import Double, double
from tests.unit.supply_images import Store, base, top
from tests.unit.test_registry_client import registry
from tests.unit.test_supply_verify import CHECKS, Site, site

__all__ = ["site"]


@pytest.fixture
def served() -> Iterator[Double]:
    with double() as made:
        yield made


def push(site: Site, served: Double) -> str:
    """The image of the site as it lies in a registry; returns its tag."""
    layer = site.known.layer("finetune")
    config = Content.of(CONFIG, site.store.config)
    layers = tuple(Content.of(LAYER_TAR, content) for content in site.store.archives)
    manifest = release.annotated(Packed(b"", config, layers), layer, "cpu", "debian")
    client = registry(served)
    for content in (config, *layers):
        client.upload(content, lambda size: None)
    tag = release.key_tag("finetune", "cpu", layer.key)
    client.put_manifest(tag, manifest, MANIFEST)
    return tag


def attach(site: Site, served: Double) -> attached.Place:
    client = registry(served)
    where = attached.find(client, site.store.held)
    made = attest.statements(site.store.engine, site.subject, where.subjects)
    attached.attach(client, where.offer.manifest, [(one.kind, sign(one, site.signer)) for one in made])
    return where


def other_artifact(kind: str) -> bytes:
    """Something attached that holds nothing; its configuration is there already."""
    config = Content.of(EMPTY, b"{}").descriptor.as_json()
    return canonical({"mediaType": MANIFEST, "artifactType": kind, "config": config, "layers": []})


def failing(site: Site, served: Double) -> list[str]:
    client = registry(served)
    where = attached.find(client, site.store.held)
    digest = where.offer.manifest.digest
    lines = attached.fetch(client, digest)
    found = verify(site.store.engine, site.subject, lines, site.keys, [digest])
    return [check.name for check in found if not check.holds]


def test_what_is_attached_holds_after_a_pull(site: Site, served: Double) -> None:
    tag = push(site, served)
    where = attach(site, served)
    assert where.name.endswith(f":{tag}")
    # the id of a pulled image is the digest of its configuration
    assert site.store.id in where.subjects.values()
    assert failing(site, served) == []
    rows = referrers.attached(registry(served), where.offer.manifest.digest)
    assert [row.artifact_type for row in rows] == [attached.ARTIFACT] * 2
    assert {row.annotations[attached.PREDICATE] for row in rows} == {
        "https://cyclonedx.org/bom",
        "https://slsa.dev/provenance/v1",
    }
    # the same again is the same
    before = len(served.manifests)
    attach(site, served)
    assert len(served.manifests) == before


def test_an_engine_whose_ids_are_no_digests_of_configurations(site: Site, served: Double) -> None:
    push(site, served)
    where = attach(site, served)
    digest = where.offer.manifest.digest
    lines = attached.fetch(registry(served), digest)
    subject = replace(site.subject, image=replace(site.store.held, id="sha256:" + "e" * 64))

    class Other(Store):
        def export(self, ref: str) -> Iterator[bytes]:
            yield from site.store.export(site.store.id)

    found = verify(Other().engine, subject, lines, site.keys, [digest])
    assert [check.name for check in found if not check.holds] == []


def test_an_image_that_nobody_pushed_or_signed(site: Site, served: Double) -> None:
    with pytest.raises(InputError, match="push it first"):
        attached.find(registry(served), site.store.held)
    push(site, served)
    assert failing(site, served) == list(CHECKS)


def test_another_image_in_its_place(site: Site, served: Double) -> None:
    tag = push(site, served)
    attach(site, served)
    [(_, first)] = [value for (_, ref), value in served.manifests.items() if ref == tag]
    site.store.layers[1] = {**site.store.layers[1], "etc/motd": b"hello"}
    push(site, served)
    # its statements are those of the first image, which nobody asked for
    assert failing(site, served) == list(CHECKS)
    client = registry(served)
    client.put_manifest(tag, first, MANIFEST)
    assert failing(site, served) == ["digest"]


def test_what_other_programs_attach_is_passed_over(site: Site, served: Double) -> None:
    push(site, served)
    where = attach(site, served)
    client = registry(served)
    bad = other_artifact(attached.ARTIFACT)
    referrers.attach(client, where.offer.manifest.digest, bad, attached.ARTIFACT)
    assert failing(site, served) == []


def test_other_kinds_of_attachments_are_passed_over(site: Site, served: Double) -> None:
    push(site, served)
    where = attach(site, served)
    referrers.attach(registry(served), where.offer.manifest.digest, other_artifact("x/y"), "x/y")
    assert failing(site, served) == []


def test_only_the_image_that_is_here_is_signed(
    site: Site, served: Double, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(site, served)
    client = registry(served)
    place = attached.find(client, site.store.held)
    cache = tmp_path / "cache"
    # what was pulled is the same by its id, or by its configuration where ids are something else
    pushed.check(site.store.engine, client, [site.subject], [place], cache, print)
    other = replace(site.subject, image=replace(site.store.held, id="sha256:other"))
    pushed.check(site.store.engine, client, [other], [place], cache, print)
    built_layers = Store([base(), {**top(), "etc/log": b"noise"}]).described
    monkeypatch.setattr(site.store, "configuration", lambda ref: built_layers)
    parent = site.known.layer("base")
    below = Image("sha256:below", (), site.store.labels, 1)
    ref = names.layer_ref("base", "cpu", parent.key)
    built = replace(site.subject, image=replace(site.store.held, id="sha256:built"))
    monkeypatch.setattr(site.store, "image", lambda name: below if name == ref else None)
    asked = []

    def export(engine: Engine, image: str, parents: list[str], folder: Path, **more: Any) -> Layout:
        asked.append((image, parents, folder.is_dir()))
        return Layout(folder, {image: Packed(b"", Content.of(CONFIG, config), ())})

    monkeypatch.setattr(layout, "export", export)
    config = site.store.config
    pushed.check(site.store.engine, client, [built], [place], cache, print)
    assert asked == [("sha256:built", ["sha256:below"], True)]
    config = b"something else"
    with pytest.raises(Untrusted, match="is another image than localhost/strix-finetune:cpu here, though its key is"):
        pushed.check(site.store.engine, client, [built], [place], cache, print)
    assert not list(cache.iterdir())


def test_an_image_with_the_name_of_another_key(site: Site, served: Double, images: Images) -> None:
    push(site, served)
    labels = {**site.store.labels, "io.strix-finetune.key": site.store.labels["io.strix-finetune.key"][:12] + "0" * 52}
    with pytest.raises(Untrusted, match="another key"):
        attached.find(registry(served), replace(site.store.held, labels=labels))
