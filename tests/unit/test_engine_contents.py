"""What fills an image: archives as both engines export them, whole and damaged."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune.codeobject.codec import zstd_module
from strix_finetune.engine.base import Engine, Layer
from strix_finetune.engine.contents import heaviest, own_folders
from strix_finetune.errors import EngineError
from tests.unit.tars import tar


class Exporter:
    """An engine whose image `image` is an archive; the image `parent` has `below` steps."""

    def __init__(self, archive: bytes, below: int = 0) -> None:
        self.archive, self.below, self.closed = archive, below, False

    def history(self, ref: str) -> list[Layer]:
        assert ref == "parent"
        return [Layer("", 0)] * self.below

    def export(self, ref: str) -> Iterator[bytes]:
        assert ref == "image"
        try:
            yield from (self.archive[at : at + 1000] for at in range(0, len(self.archive), 1000))
        finally:
            self.closed = True


def folders(archive: bytes, below: int = 0) -> dict[str, int]:
    exporter = Exporter(archive, below)
    try:
        return own_folders(cast(Engine, cast(Any, exporter)), "image", "parent" if below else "")
    finally:
        assert exporter.closed


BASE = tar({"usr/bin/sh": b"x" * 5000, "etc/passwd": b"x" * 100})
FIRST = tar({"./usr/lib/torch/a.so": b"x" * 9000, "usr/lib/torch/lib/b.so": b"x" * 700, "etc/passwd": b"x" * 200})
SECOND = tar({"usr/lib/torch/.wh.a.so": b"", "usr/lib/torch/c.so": b"x" * 300, "opt/link": ("hard", "usr/lib/c.so")})
HISTORY: list[dict[str, Any]] = [
    {"created_by": "ADD"},
    {"created_by": "ENV", "empty_layer": True},
    {"created_by": "RUN one"},
    {"created_by": "CMD", "empty_layer": True},
    {"created_by": "RUN two"},
]
OWN = {"usr/lib/torch": 9300, "usr/lib/torch/lib": 700, "etc": 200}


def manifest(*layers: str, config: str = "c.json") -> bytes:
    return json.dumps([{"Config": config, "RepoTags": None, "Layers": layers}]).encode()


def config(history: list[dict[str, Any]] | None = None) -> bytes:
    return json.dumps({"architecture": "amd64", "history": HISTORY if history is None else history}).encode()


def classic(**changes: bytes | tuple[str, str]) -> bytes:
    """As Docker 20.10 writes it; `changes` take the place of members, by the last part of their names."""
    members: dict[str, bytes | tuple[str, str]] = {
        "c.json": config(),
        "2/VERSION": b"1.0",
        "2/json": b"{}",
        "2/layer.tar": SECOND,
        "0/VERSION": b"1.0",
        "0/layer.tar": BASE,
        "1/layer.tar": FIRST,
        "manifest.json": manifest("0/layer.tar", "1/layer.tar", "2/layer.tar"),
    }
    for name, content in changes.items():
        members[{"config": "c.json", "manifest": "manifest.json", "second": "2/layer.tar"}[name]] = content
    return tar(members)


def test_only_the_layers_above_the_parent_count() -> None:
    assert folders(classic(), below=2) == OWN
    assert folders(classic(), below=4) == {"usr/lib/torch": 300}
    assert folders(classic(), below=5) == {}
    assert folders(classic()) == {**OWN, "usr/bin": 5000, "etc": 300}


def test_an_oci_layout_with_compressed_layers() -> None:
    names = [f"blobs/sha256/{digit * 64}" for digit in "abc"]
    config_name = f"blobs/sha256/{'d' * 64}"
    packed = tar(
        {
            names[0]: gzip.compress(BASE),
            names[1]: gzip.compress(FIRST),
            names[2]: zstd_module().compress(SECOND),
            config_name: config(),
            "index.json": b"{}",
            "manifest.json": manifest(*names, config=config_name),
            "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        }
    )
    assert folders(packed, below=2) == OWN


@pytest.mark.parametrize("link", [("sym", "../1/layer.tar"), ("hard", "1/layer.tar")])
def test_a_layer_that_is_there_twice_is_a_link(link: tuple[str, str]) -> None:
    assert folders(classic(second=link), below=4) == {"usr/lib/torch": 9000, "usr/lib/torch/lib": 700, "etc": 200}


@pytest.mark.parametrize(
    "archive",
    [
        classic()[:9000],
        classic(manifest=b"[]"),
        classic(manifest=b"{}"),
        classic(manifest=b"not json"),
        classic(config=b"[]"),
        tar({"c.json": config()}),
        b"",
        b"x" * 2000,
    ],
)
def test_a_damaged_archive_is_a_sentence(archive: bytes) -> None:
    with pytest.raises(EngineError, match="archive"):
        folders(archive)


def test_the_heaviest_folders_say_something() -> None:
    found = heaviest({"usr/lib/a/b/c": 600, "usr/lib/x": 100, "usr/share": 150, "opt/one/two": 90, "": 10, "etc": 5})
    assert found == [("/usr/lib/a/b/c", 600), ("/usr/share", 150), ("/usr/lib/x", 100)]
    # a folder whose own files are most of it stays whole
    assert heaviest({"lib": 900, "lib/sub": 100}) == [("/lib", 1000)]
    assert heaviest({"lib": 100, "lib/a": 450, "lib/b": 450}, 2) == [("/lib/a", 450), ("/lib/b", 450)]
    assert heaviest({"": 7}) == [("/", 7)]
    assert heaviest({}) == []
    assert heaviest({"empty": 0}) == []


PATHS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=4).map("/".join)


@given(st.dictionaries(PATHS, st.integers(0, 1000), max_size=12), st.integers(1, 5))
def test_the_heaviest_folders_do_not_overlap_and_are_what_they_say(sizes: dict[str, int], count: int) -> None:
    found = heaviest(sizes, count)
    assert len(found) <= count
    assert [size for _, size in found] == sorted((size for _, size in found), reverse=True)
    for path, size in found:
        prefix = path.strip("/")
        inside = {name for name in sizes if not prefix or name == prefix or name.startswith(f"{prefix}/")}
        assert size == sum(sizes[name] for name in inside) > 0
        assert not any(other != path and f"{other}/".startswith(f"{path}/") for other, _ in found)
    assert sum(size for _, size in found) <= sum(sizes.values())
    assert bool(found) == (sum(sizes.values()) > 0)
