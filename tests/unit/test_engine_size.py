"""The compressed size of an image, against archives as engines export them."""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
from collections.abc import Iterator
from typing import Any, cast

import pytest

from strix_finetune.engine.base import Engine
from strix_finetune.engine.size import compressed_size
from strix_finetune.errors import EngineError


class Exporter:
    """An engine that can do nothing but export."""

    def __init__(self, archive: bytes) -> None:
        self.archive = archive
        self.closed = False

    def export(self, ref: str) -> Iterator[bytes]:
        try:
            for at in range(0, len(self.archive), 10_000):
                yield self.archive[at : at + 10_000]
        finally:
            self.closed = True


def size_of(archive: bytes) -> int:
    exporter = Exporter(archive)
    try:
        return compressed_size(cast(Engine, cast(Any, exporter)), "x")
    finally:
        assert exporter.closed


def tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def prose(size: int) -> bytes:
    chance = random.Random(1)
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(3000)]
    text = b" ".join(chance.choices(words, k=size // 5))
    return text[:size]


def test_it_is_what_gzip_makes_of_the_layers() -> None:
    layers = [tar({"usr/share/doc": prose(5_000_000)}), tar({"bin/x": os.urandom(300_000)})]
    archive = tar(
        {
            "abc/VERSION": b"1.0",
            "abc/json": b'{"id": "abc"}' * 1000,
            "abc/layer.tar": layers[0],
            "def/layer.tar": layers[1],
            "manifest.json": b"[{}]",
        }
    )
    expected = sum(len(gzip.compress(layer, 6)) for layer in layers)
    assert size_of(archive) == pytest.approx(expected, rel=0.01)


def test_layers_that_are_compressed_already_count_as_they_are() -> None:
    packed = gzip.compress(tar({"a": prose(50_000)}), 6)
    archive = tar({"blobs/sha256/1": packed, "blobs/sha256/2": b'{"config": 1}', "oci-layout": b"{}"})
    assert size_of(archive) == len(packed)


def test_an_empty_layer_is_a_layer() -> None:
    assert size_of(tar({"layer.tar": tar({})})) < 100


def test_an_export_that_is_cut_off_is_an_error_not_a_small_image() -> None:
    archive = tar({"layer.tar": tar({"a": os.urandom(200_000)})})
    with pytest.raises(EngineError):
        size_of(archive[:100_000])
    with pytest.raises(EngineError, match="holds no layer"):
        size_of(tar({"manifest.json": b"[]"}))
    with pytest.raises(EngineError, match="not a whole archive"):
        size_of(b"nonsense" * 1000)
