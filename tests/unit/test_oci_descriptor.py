"""Descriptors: what is written is what is read, and nothing half is taken for whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strix_finetune.oci import descriptor
from strix_finetune.oci.descriptor import Content, Descriptor, Packed

DIGEST = "sha256:" + "a" * 64


def test_a_descriptor_survives_its_json() -> None:
    made = Descriptor("a/b", DIGEST, 7, {"x": "y"}, "c/d", {"os": "linux", "architecture": "amd64"})
    assert Descriptor.from_json(json.loads(json.dumps(made.as_json()))) == made
    assert Descriptor("a/b", DIGEST, 7).as_json() == {"mediaType": "a/b", "digest": DIGEST, "size": 7}


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        {"digest": DIGEST, "size": 1},
        {"mediaType": "a/b", "digest": "sha256:1", "size": 1},
        {"mediaType": "a/b", "digest": DIGEST.upper(), "size": 1},
        {"mediaType": "a/b", "digest": DIGEST, "size": -1},
        {"mediaType": "a/b", "digest": DIGEST, "size": "1"},
        {"mediaType": "a/b", "digest": DIGEST, "size": True},
    ],
)
def test_a_broken_descriptor_is_refused(row: Any) -> None:
    with pytest.raises(ValueError, match="descriptor"):
        Descriptor.from_json(row)


def test_what_is_not_text_in_a_platform_is_passed_over() -> None:
    row = {"mediaType": "a/b", "digest": DIGEST, "size": 1, "platform": {"os": "linux", "os.features": ["x"]}}
    assert Descriptor.from_json(row).platform == {"os": "linux"}


@pytest.mark.parametrize(
    ("document", "told", "found"),
    [
        ({"mediaType": descriptor.DOCKER_INDEX, "manifests": []}, descriptor.INDEX, descriptor.DOCKER_INDEX),
        ({"mediaType": descriptor.MANIFEST, "layers": []}, descriptor.INDEX, descriptor.MANIFEST),
        ({"mediaType": "x/y", "layers": []}, descriptor.DOCKER_MANIFEST, descriptor.DOCKER_MANIFEST),
        ({"manifests": []}, descriptor.DOCKER_INDEX, descriptor.DOCKER_INDEX),
        ({"manifests": []}, "text/plain", descriptor.INDEX),
        ({"mediaType": 3, "layers": []}, "", descriptor.MANIFEST),
        ({"manifests": [], "layers": []}, "application/json", "application/json"),
        ({}, "application/json", "application/json"),
        ([], "", ""),
    ],
)
def test_what_a_manifest_is(document: object, told: str, found: str) -> None:
    assert descriptor.manifest_type(json.dumps(document).encode(), told) == found


@pytest.mark.parametrize("document", [b"", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_what_it_is_served_as(document: bytes) -> None:
    assert descriptor.manifest_type(document, "a/b") == "a/b"


def test_a_manifest_follows_from_what_is_given_alone() -> None:
    config, layer = Content.of(descriptor.CONFIG, b"{}"), Content.of(descriptor.LAYER_TAR, b"layer")
    one = descriptor.image_manifest(config.descriptor, (layer.descriptor,), {"b": "2", "a": "1"})
    two = descriptor.image_manifest(config.descriptor, (layer.descriptor,), {"a": "1", "b": "2"})
    assert one == two
    assert descriptor.image_manifest(config.descriptor, (layer.descriptor,), {"a": "2"}) != one
    packed = Packed(one, config, (layer, layer))
    assert packed.digest == descriptor.digest_of(one)
    assert [blob.descriptor for blob in packed.blobs] == [layer.descriptor, config.descriptor]
    assert b"".join(layer.read(2)) == b"yer"
