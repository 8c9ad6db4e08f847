"""Images of an engine, put into a registry for those who pull: by this project's own layers and client."""

from __future__ import annotations

import tempfile
from pathlib import Path

from strix_finetune.engine.base import Engine
from strix_finetune.netconf import NetSettings
from strix_finetune.oci import layout
from strix_finetune.oci.descriptor import Packed
from strix_finetune.registry.client import Registry, connect
from strix_finetune.registry.repository import parse

EPOCH = 1_750_000_000


def publish(engine: Engine, image: str, name: str) -> str:
    """Push one image as HOST/PATH:TAG; returns the digest that the registry was then seen to serve."""
    repository, _, tag = name.rpartition(":")
    to = connect(parse(repository), NetSettings(), {}, sleep=lambda seconds: None)
    with tempfile.TemporaryDirectory(prefix="publish-") as folder:
        packed = layout.export(engine, image, (), Path(folder), epoch=EPOCH).packed[image]
        return send(packed, to, tag)[0]


def send(packed: Packed, to: Registry, tag: str) -> tuple[str, int]:
    """Push what was packed; returns its digest and the bytes that were sent."""
    sent = 0
    for blob in packed.blobs:
        if to.upload(blob, lambda done: None) == "sent":
            sent += blob.descriptor.size
    return to.put_manifest(tag, packed.manifest, packed.media_type).digest, sent
