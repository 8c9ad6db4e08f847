"""What is attached to an image: manifests whose `subject` it is. Registries that do not list them get a tag instead.

The fallback is the specification's own: a tag `sha256-<hex>` on an index of what is attached to that digest.
"""

from __future__ import annotations

import json

from strix_finetune.oci import descriptor
from strix_finetune.oci.descriptor import Descriptor, canonical
from strix_finetune.registry.client import Registry
from strix_finetune.registry.downloads import whole
from strix_finetune.registry.faults import Untrusted

_LARGEST = 4 << 20


def tag(digest: str) -> str:
    """The name of the fallback index."""
    return digest.replace(":", "-", 1)


def attached(registry: Registry, digest: str) -> tuple[Descriptor, ...]:
    """What is attached to a manifest, as descriptors of manifests with their artifact types; empty where nothing is."""
    native = _native(registry, digest)
    return _fallback(registry, digest) if native is None else native


def attach(registry: Registry, subject: str, manifest: bytes, artifact_type: str) -> Descriptor:
    """Push a manifest whose `subject` is the digest `subject`, and list it where the registry does not by itself.

    The blobs that it names must be there already. Raises RegistryError.
    """
    made = registry.put_manifest(descriptor.digest_of(manifest), manifest, descriptor.MANIFEST)
    annotations = json.loads(manifest).get("annotations") or {}
    made = Descriptor(made.media_type, made.digest, made.size, annotations, artifact_type)
    if _native(registry, subject) is None:
        held = [row for row in _fallback(registry, subject) if row.digest != made.digest]
        _put_fallback(registry, subject, (*held, made))
    return made


def _native(registry: Registry, digest: str) -> tuple[Descriptor, ...] | None:
    """The registry's own list, None where it has no such thing."""
    doing = f"read what is attached to {registry.repository.at(digest)}"
    url = registry.repository.url(f"referrers/{digest}")
    with registry.http.ask("GET", url, doing=doing, ok=(200, 400, 404, 405, 501), stream=True) as answer:
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        if answer.status_code != 200 or kind != descriptor.INDEX:
            return None
        return _rows(whole(answer, doing, _LARGEST), registry, digest)


def _fallback(registry: Registry, digest: str) -> tuple[Descriptor, ...]:
    served = registry.manifest(tag(digest))
    return _rows(served.content, registry, digest) if served else ()


def _put_fallback(registry: Registry, digest: str, rows: tuple[Descriptor, ...]) -> None:
    ordered = sorted(rows, key=lambda row: row.digest)
    index = {
        "schemaVersion": 2,
        "mediaType": descriptor.INDEX,
        "manifests": [row.as_json() for row in ordered],
    }
    registry.put_manifest(tag(digest), canonical(index), descriptor.INDEX)


def _rows(content: bytes, registry: Registry, digest: str) -> tuple[Descriptor, ...]:
    try:
        return tuple(Descriptor.from_json(row) for row in json.loads(content)["manifests"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Untrusted(
            f"the list of what is attached to {registry.repository.at(digest)} is broken: {error}"
        ) from None
