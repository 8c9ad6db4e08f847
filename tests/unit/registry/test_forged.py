"""Images that are not what their names say: not loaded, not built on, and replaced by the next push."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from strix_finetune import names
from strix_finetune.execute import Failed
from strix_finetune.oci.descriptor import INDEX, MANIFEST, canonical, digest_of
from strix_finetune.plan import Pull
from strix_finetune.registry.faults import Untrusted
from tests.unit.registry.site import TARGET, Site, Store, key_tags


def edit(site: Site, change: Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], None]) -> None:
    """Change index, manifest and configuration of the final image, with all digests set right again."""
    index = json.loads(site.served.manifests["a/b", TARGET][1])
    row = index["manifests"][0]
    kind, content = site.served.manifests["a/b", row["digest"]]
    manifest = json.loads(content)
    config = json.loads(site.served.blobs[manifest["config"]["digest"]])
    change(index, manifest, config)
    body = canonical(config)
    site.served.blobs[digest_of(body)] = body
    site.served.links.add(("a/b", digest_of(body)))
    manifest["config"] |= {"digest": digest_of(body), "size": len(body)}
    content = canonical(manifest)
    row |= {"digest": digest_of(content), "size": len(content)}
    [tag] = key_tags(site, "app")
    for reference in (digest_of(content), tag):
        site.served.manifests["a/b", reference] = (kind, content)
    site.served.manifests["a/b", TARGET] = (INDEX, canonical(index))


Change = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], None]


def label(name: str, value: str) -> Change:
    return lambda index, manifest, config: config["config"]["Labels"].update({name: value})


def annotation(name: str, value: str) -> Change:
    return lambda index, manifest, config: manifest["annotations"].update({name: value})


def more_parts(index: dict[str, Any], manifest: dict[str, Any], config: dict[str, Any]) -> None:
    parts = json.loads(config["config"]["Labels"][names.PARTS])
    config["config"]["Labels"][names.PARTS] = json.dumps(parts | {"apt openssl": "1"})


def other_target(index: dict[str, Any], manifest: dict[str, Any], config: dict[str, Any]) -> None:
    for told in (index["annotations"], manifest["annotations"], config["config"]["Labels"]):
        told[names.TARGET] = "cpu"


FORGED = [
    (label(names.PARTS, "{}"), r"has a label io\.strix-finetune\.parts that its key was not made of"),
    (more_parts, r"has a label io\.strix-finetune\.parts that its key was not made of"),
    (label(names.KEY, "0" * 64), r"has the label io\.strix-finetune\.key=0000"),
    (label(names.LAYER, "base"), r"has the label io\.strix-finetune\.layer=base"),
    (label(names.CHANNEL, "amd"), r"has the label io\.strix-finetune\.channel=amd"),
    (label(names.TESTS, "none"), "does not say which smoke tests"),
    (annotation(names.INPUTS, ""), "says nothing of inputs"),
    (annotation(names.INPUTS, "{}"), "its recorded inputs make another one"),
    (lambda index, manifest, config: config["rootfs"]["diff_ids"].pop(), "with 3 layers, and its manifest has 4"),
    (lambda index, manifest, config: config.update(os="windows"), "is for windows/amd64"),
    (lambda index, manifest, config: config.pop("rootfs"), "has a configuration that cannot be read"),
]


@pytest.mark.parametrize(("change", "words"), FORGED)
def test_forged_images_are_neither_pulled_nor_built_on(site: Site, change: Change, words: str) -> None:
    site.push()
    edit(site, change)
    engine = Store()
    with pytest.raises(Untrusted, match=words):
        site.pull(engine)
    assert not engine.store
    plan, outcomes = site.build_from(engine)
    if isinstance(plan.step("app").action, Pull):
        outcome = outcomes["app"]
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, Untrusted)
    else:
        assert "not used: " in "".join(site.heard())
    assert not any("/app:" in ref for ref in engine.refs)


@pytest.mark.parametrize("kind", [MANIFEST, INDEX])
def test_what_is_no_image_is_neither_built_on_nor_left_there(site: Site, kind: str) -> None:
    before = site.push()
    [tag] = key_tags(site, "app")
    right = site.served.manifests["a/b", tag]
    site.served.manifests["a/b", tag] = (kind, b"{}")
    plan, _ = site.build_from(Store())
    assert not isinstance(plan.step("app").action, Pull)
    words = "its manifest cannot be read (KeyError)" if kind == MANIFEST else "it is not the manifest of an image"
    place = f"{site.client.repository.at(tag)} cannot be used: {words}"
    assert f"not used: {place}" in site.heard()
    assert site.push() == before
    assert f"replaced: {place}" in site.heard()
    assert site.served.manifests["a/b", tag] == right


@pytest.mark.parametrize(("change", "words"), FORGED)
def test_a_push_replaces_what_was_forged(site: Site, change: Change, words: str) -> None:
    site.push()
    [tag] = key_tags(site, "app")
    right = site.served.manifests["a/b", tag]
    edit(site, change)
    assert site.served.manifests["a/b", tag] != right
    site.push()
    [told] = [line for line in site.heard() if line.startswith("replaced: ")]
    assert re.search(words, told)
    assert site.served.manifests["a/b", tag] == right


def test_an_image_of_another_target_or_channel(site: Site) -> None:
    site.push()
    edit(site, other_target)
    with pytest.raises(Untrusted, match="it is made for cpu, not gfx1151"):
        site.pull(Store())


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        (INDEX, b"[]", "cannot be read"),
        (INDEX, b'{"manifests": []}', "was not pushed by strix-finetune"),
        ("application/vnd.oci.image.manifest.v1+json", b"{}", "is not an index of a release"),
        (INDEX, b"\0", "cannot be used"),
    ],
)
def test_what_is_no_release(site: Site, kind: str, content: bytes, words: str) -> None:
    site.served.manifests["a/b", TARGET] = (kind, content)
    with pytest.raises(Untrusted, match=words):
        site.pull(Store())
