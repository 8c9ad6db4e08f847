"""What is attached to an image, in registries that list it and in those that do not."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from strix_finetune.oci.descriptor import INDEX, MANIFEST, canonical, digest_of
from strix_finetune.registry import referrers
from strix_finetune.registry.faults import Untrusted
from tests.unit.registry_double import Double, Handler, double
from tests.unit.test_registry_client import registry

SUBJECT = "sha256:" + "1" * 64


@pytest.fixture
def served() -> Iterator[Double]:
    with double() as made:
        yield made


def statement(word: str) -> bytes:
    return canonical({"mediaType": MANIFEST, "subject": {"digest": SUBJECT}, "annotations": {"word": word}})


def test_a_registry_without_a_list_gets_a_tag(served: Double) -> None:
    client = registry(served)
    assert referrers.attached(client, SUBJECT) == ()
    one = referrers.attach(client, SUBJECT, statement("one"), "a/sbom")
    two = referrers.attach(client, SUBJECT, statement("two"), "a/signature")
    assert referrers.attach(client, SUBJECT, statement("one"), "a/sbom") == one
    assert set(referrers.attached(client, SUBJECT)) == {one, two}
    assert one.annotations == {"word": "one"}
    assert one.artifact_type == "a/sbom"
    assert served.tags("a/b") == {"sha256-" + "1" * 64}


def test_a_registry_with_a_list_gets_no_tag(served: Double) -> None:
    client = registry(served)
    content = statement("one")
    row = {"mediaType": MANIFEST, "digest": digest_of(content), "size": len(content), "artifactType": "a/sbom"}

    def lists(handler: Handler) -> bool:
        if "/referrers/" in handler.path:
            handler.answer(200, json.dumps({"manifests": [row]}).encode(), Content_Type=INDEX)
            return True
        return False

    served.faults = [lists]
    referrers.attach(client, SUBJECT, content, "a/sbom")
    assert [found.artifact_type for found in referrers.attached(client, SUBJECT)] == ["a/sbom"]
    assert served.tags("a/b") == set()


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"manifests": [{"digest": "x"}]}'])
def test_a_broken_list_is_told(served: Double, content: bytes) -> None:
    served.manifests["a/b", referrers.tag(SUBJECT)] = (INDEX, content)
    with pytest.raises(Untrusted, match="is broken"):
        referrers.attached(registry(served), SUBJECT)
