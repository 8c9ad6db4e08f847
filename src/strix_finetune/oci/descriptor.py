"""What a registry knows of content: descriptors, blobs that can be read again, and an image ready to be pushed.

Names of fields and media types: OCI image specification 1.1, https://github.com/opencontainers/image-spec.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER_TAR = "application/vnd.oci.image.layer.v1.tar"
LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
LAYER_ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
EMPTY = "application/vnd.oci.empty.v1+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
# what an image may begin with
MANIFESTS = (INDEX, MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST)

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def digest_of(content: bytes) -> str:
    """ "sha256:" and 64 hex digits."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def canonical(document: Mapping[str, Any]) -> bytes:
    """JSON whose bytes, and so its digest, follow from its content alone."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def manifest_type(document: bytes, told: str) -> str:
    """What a manifest or index is: as it says itself, else as it was served (`told`), else by what it holds.

    Servers of files, and proxies, know no type but that of JSON or text. What is neither keeps the type that was told.
    """
    try:
        read = json.loads(document)
    except (ValueError, RecursionError):
        return told
    said = read if isinstance(read, dict) else {}
    for name in (said.get("mediaType"), told):
        if name in MANIFESTS:
            return str(name)
    # one that holds both would be what each reader makes of it
    held = [kind for name, kind in (("manifests", INDEX), ("layers", MANIFEST)) if name in said]
    return held[0] if len(held) == 1 else told


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One content: what it is, its digest ("sha256:…") and its size in bytes.

    `artifact_type` and `platform` are written only where they are not empty.
    """

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    artifact_type: str = ""
    platform: Mapping[str, str] = field(default_factory=dict, hash=False)

    def as_json(self) -> dict[str, Any]:
        made: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.artifact_type:
            made["artifactType"] = self.artifact_type
        if self.platform:
            made["platform"] = dict(self.platform)
        if self.annotations:
            made["annotations"] = dict(self.annotations)
        return made

    @classmethod
    def of(cls, media_type: str, content: bytes, **more: Any) -> Descriptor:
        """The descriptor of bytes that are at hand."""
        return cls(media_type, digest_of(content), len(content), **more)

    @classmethod
    def from_json(cls, row: object) -> Descriptor:
        """Read what a manifest says. Raises ValueError with a few words for anything but a whole descriptor."""
        if not isinstance(row, dict):
            raise ValueError("a descriptor is not an object")
        media_type, digest, size = row.get("mediaType"), row.get("digest"), row.get("size")
        if not isinstance(media_type, str) or not isinstance(digest, str) or not is_digest(digest):
            raise ValueError("a descriptor has no media type or no sha256 digest")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ValueError("a descriptor has no size")
        kind = row.get("artifactType")
        return cls(
            media_type,
            digest,
            size,
            texts(row.get("annotations")),
            kind if isinstance(kind, str) else "",
            texts(row.get("platform")),
        )


def texts(value: object) -> dict[str, str]:
    """Only text: a platform may also hold lists, which nothing here reads."""
    rows = value.items() if isinstance(value, dict) else ()
    return {name: text for name, text in rows if isinstance(name, str) and isinstance(text, str)}


@dataclass(frozen=True, slots=True)
class Content:
    """A blob that can be read as often as needed: `read(offset)` streams its bytes from there on."""

    descriptor: Descriptor
    read: Callable[[int], Iterator[bytes]] = field(compare=False)

    @classmethod
    def of(cls, media_type: str, content: bytes, **more: Any) -> Content:
        """A small blob that is held in memory."""
        return cls(Descriptor.of(media_type, content, **more), lambda offset: iter((content[offset:],)))


@dataclass(frozen=True, slots=True)
class Packed:
    """An image ready for a registry: the bytes of its manifest, its configuration, and its layers, lowest first."""

    manifest: bytes
    config: Content
    layers: tuple[Content, ...]
    media_type: str = MANIFEST

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)

    @property
    def blobs(self) -> tuple[Content, ...]:
        """Everything that the manifest needs, each once."""
        return tuple({blob.descriptor.digest: blob for blob in (*self.layers, self.config)}.values())


def image_manifest(config: Descriptor, layers: tuple[Descriptor, ...], annotations: Mapping[str, str]) -> bytes:
    """The manifest of an image, in bytes that follow from what is given alone."""
    document: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.as_json(),
        "layers": [layer.as_json() for layer in layers],
    }
    if annotations:
        document["annotations"] = dict(annotations)
    return canonical(document)
