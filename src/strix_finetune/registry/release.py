"""What a release is in a registry: the names of its images, what their manifests say, and the index over them. Pure.

    REPOSITORY:<layer>-<target>-<key12>   one layer's image, for ever
    REPOSITORY:<target>                   an index: the final image first, then the layers that it stands on

An engine that pulls the index takes the first image for its platform; the others are marked as for none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strix_finetune import names
from strix_finetune.key import PLATFORM
from strix_finetune.model import Keyed
from strix_finetune.oci import descriptor
from strix_finetune.oci.descriptor import Descriptor, Packed, canonical, image_manifest
from strix_finetune.registry.client import Served

ARTIFACT = "application/vnd.strix-finetune.release.v1"
CREATED = "org.opencontainers.image.created"
REVISION = "org.opencontainers.image.revision"
LATEST = "latest"
_NOWHERE = {"os": "unknown", "architecture": "unknown"}
# what may differ between two pushes of the same images
_VOLATILE = (CREATED, REVISION)
_NOT_IN_TAGS = re.compile(r"[^\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Offer:
    """An image in a registry, as its manifest describes it. `annotations` are the manifest's own."""

    manifest: Descriptor
    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: Mapping[str, str]

    @property
    def size(self) -> int:
        """Bytes of its layers, as they travel."""
        return sum(layer.size for layer in self.layers)


@dataclass(frozen=True, slots=True)
class Release:
    """An index over the images of one release, the final one first."""

    index: Descriptor
    images: tuple[Descriptor, ...]
    annotations: Mapping[str, str]


def key_tag(layer: str, target: str, key: str) -> str:
    """The name of one layer's image: whoever has the same key gets the same layer."""
    return f"{layer}-{target}-{key[: names.KEY_DIGITS]}"


def human_tags(target: str, version: str, day: str, *, default: bool) -> tuple[str, ...]:
    """The names that people type, the one that most machines follow last. `day`: ISO 8601, UTC."""
    version = _NOT_IN_TAGS.sub("-", version).strip("-.")
    exact = [f"{target}-{day.replace('-', '')}", *([f"{target}-{version}"] if version else [])]
    return (*exact, target, *([LATEST] if default else []))


def version_of(labels: Mapping[str, str]) -> str:
    """The version that names a release: ROCm's, where the image has it, else PyTorch's."""
    return labels.get(f"{names.VERSION}.hip") or labels.get(f"{names.VERSION}.torch") or ""


def annotated(image: Packed, layer: Keyed, target: str, channel: str) -> bytes:
    """The manifest of a packed image with what it is made of: always the same for the same image."""
    annotations = {
        names.KEY: layer.key,
        names.LAYER: layer.name,
        names.TARGET: target,
        names.CHANNEL: channel,
        names.INPUTS: layer.inputs,
    }
    return image_manifest(image.config.descriptor, tuple(blob.descriptor for blob in image.layers), annotations)


def make_index(images: Sequence[Descriptor], annotations: Mapping[str, str]) -> bytes:
    """The index over images, the final one first; `annotations` of an image name its layer and key."""
    os, _, architecture = PLATFORM.partition("/")
    rows = [
        Descriptor(
            image.media_type,
            image.digest,
            image.size,
            image.annotations,
            platform=_NOWHERE if number else {"os": os, "architecture": architecture},
        ).as_json()
        for number, image in enumerate(images)
    ]
    document = {
        "schemaVersion": 2,
        "mediaType": descriptor.INDEX,
        "artifactType": ARTIFACT,
        "manifests": rows,
        "annotations": dict(annotations),
    }
    return canonical(document)


def read_offer(served: Served) -> Offer:
    """An image's manifest as a value. Raises ValueError with a few words for anything else."""
    if served.media_type not in (descriptor.MANIFEST, descriptor.DOCKER_MANIFEST):
        raise ValueError("it is not the manifest of an image")
    try:
        told = json.loads(served.content)
        layers = tuple(Descriptor.from_json(row) for row in told["layers"])
        return Offer(
            served.descriptor, Descriptor.from_json(told["config"]), layers, descriptor.texts(told.get("annotations"))
        )
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"its manifest cannot be read ({type(error).__name__})") from None


def read_release(served: Served) -> Release:
    """An index as a value. Raises ValueError with a few words for anything else."""
    if served.media_type != descriptor.INDEX:
        raise ValueError("it is not an index of a release")
    try:
        told = json.loads(served.content)
        images = tuple(Descriptor.from_json(row) for row in told["manifests"])
        if told.get("artifactType") != ARTIFACT or not images:
            raise ValueError("it was not pushed by strix-finetune")
        return Release(served.descriptor, images, descriptor.texts(told.get("annotations")))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it cannot be read ({type(error).__name__})") from None


def same_release(one: bytes, other: bytes) -> bool:
    """Whether two indexes are of the same images and say the same of them, whenever they were pushed."""
    return _stable(one) == _stable(other)


def _stable(index: bytes) -> object:
    told = json.loads(index)
    annotations = {name: text for name, text in told.get("annotations", {}).items() if name not in _VOLATILE}
    return told | {"annotations": annotations}
