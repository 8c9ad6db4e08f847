"""What is signed about an image in a registry: attached to its manifest, as artifacts that refer to it.

Each envelope is the one layer of a manifest whose `subject` is the image: https://github.com/opencontainers/image-spec.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from strix_finetune import names
from strix_finetune.engine.base import Image
from strix_finetune.errors import InputError, Problem
from strix_finetune.oci.descriptor import EMPTY, MANIFEST, Content, Descriptor, canonical
from strix_finetune.registry import referrers, release, trust
from strix_finetune.registry.client import Registry
from strix_finetune.registry.faults import Untrusted
from strix_finetune.registry.release import Offer
from strix_finetune.supply.envelope import MEDIA_TYPE

ARTIFACT = "application/vnd.in-toto+json"
PREDICATE = "in-toto.io/predicate-type"


@dataclass(frozen=True, slots=True)
class Place:
    """An image in a registry, and what it is called there."""

    offer: Offer
    name: str

    @property
    def subjects(self) -> dict[str, str]:
        """What a statement speaks of: the manifest, and the configuration, which is the id of the image once pulled."""
        return {self.name: self.offer.manifest.digest, f"{self.name} configuration": self.offer.config.digest}


def find(registry: Registry, image: Image) -> Place:
    """The image of the same key. Raises InputError where there is none, Untrusted where it is not what it says."""
    labels = image.labels
    target = labels.get(names.TARGET, "")
    tag = release.key_tag(labels.get(names.LAYER, ""), target, labels[names.KEY])
    name = registry.repository.at(tag)
    served = registry.manifest(tag)
    if served is None:
        raise InputError(f"there is no {name}", cure="push it first with 'strix-finetune push'")
    offer = trust.offered(served, name, target=target)
    if offer.annotations[names.KEY] != labels[names.KEY]:
        raise Untrusted(Problem(f"{name} has another key than its name says"))
    return Place(offer, name)


def attach(registry: Registry, subject: Descriptor, lines: Iterable[tuple[str, bytes]]) -> list[Descriptor]:
    """Push envelopes, given with the type of what they say. What said the same before stays beside them."""
    empty = Content.of(EMPTY, b"{}")
    made = []
    for kind, line in lines:
        layer = Content.of(MEDIA_TYPE, line)
        for content in (empty, layer):
            registry.upload(content, lambda size: None)
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": ARTIFACT,
            "config": empty.descriptor.as_json(),
            "layers": [layer.descriptor.as_json()],
            "subject": Descriptor(subject.media_type, subject.digest, subject.size).as_json(),
            "annotations": {PREDICATE: kind},
        }
        made.append(referrers.attach(registry, subject.digest, canonical(manifest), ARTIFACT))
    return made


def fetch(registry: Registry, digest: str) -> list[bytes]:
    """The envelopes that are attached to a manifest, in the order of their digests. They prove nothing unchecked."""
    found = []
    for row in sorted(referrers.attached(registry, digest), key=lambda row: row.digest):
        if row.artifact_type != ARTIFACT:
            continue
        served = registry.manifest(row.digest)
        if served is None:
            continue
        try:
            document = json.loads(served.content)
            [layer] = [Descriptor.from_json(layer) for layer in document["layers"]]
            if document["subject"]["digest"] != digest or layer.media_type != MEDIA_TYPE:
                raise ValueError("it is about something else")
        except (ValueError, KeyError, TypeError, RecursionError):
            # other programs attach statements in forms of their own
            continue
        found.append(registry.small(layer))
    return found
