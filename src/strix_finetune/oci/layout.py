"""A local image as an OCI layout whose layers repeat byte for byte, whichever engine built it, and however often.

    layout = export(engine, image, parents, folder, epoch=lock_epoch(lock), groups=groups_of(stack))
    layout.packed[image]    # descriptor.Packed: what a registry takes; one for each of the parents, too

`image` and `parents` are references that the engine knows; parents are the images of the stack below, in any order.
What a layer of the stack adds to its parent becomes one layer of the image, or a few (see `split`): the difference of
the two trees, without what only tells how it was built (see `normal`). `folder` then holds an OCI image layout
(`oci-layout`, `index.json`, `blobs/sha256/`), and may be kept: what is in it already is not made again.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from strix_finetune import leftovers
from strix_finetune.engine.base import Engine
from strix_finetune.errors import EngineError, InputError, Problem
from strix_finetune.lockmodel import Lock
from strix_finetune.model import Stack
from strix_finetune.oci import pack
from strix_finetune.oci.config import config
from strix_finetune.oci.cuts import Cut, cuts, keys
from strix_finetune.oci.descriptor import (
    CONFIG,
    INDEX,
    MANIFEST,
    Content,
    Descriptor,
    Packed,
    canonical,
    image_manifest,
)
from strix_finetune.oci.memory import Memory, Remembered, Row
from strix_finetune.oci.normal import normal, settled
from strix_finetune.oci.pack import Unread
from strix_finetune.oci.scan import RawImage, read_image
from strix_finetune.oci.split import LIMIT, MOST_LAYERS, Part, split
from strix_finetune.oci.tree import Change, Tree, apply, change, with_folders

_BLOCK = 1024 * 1024
_REF = "org.opencontainers.image.ref.name"

Groups = Mapping[str, Mapping[str, Sequence[str]]]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of an image: which layer of the stack it belongs to, which part of it, and its blob.

    `size` in bytes, unpacked, as a tar.
    """

    stack_layer: str
    part: str
    content: Content
    diff_id: str
    size: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A folder with images in it. `packed` and `layers`: by the reference that was asked for."""

    folder: Path
    packed: Mapping[str, Packed] = field(default_factory=dict)
    layers: Mapping[str, tuple[Layer, ...]] = field(default_factory=dict)


def lock_epoch(lock: Lock) -> int:
    """The youngest of the locked Release files, in seconds since 1970: no file out of a package is younger."""
    from datetime import datetime

    return max(int(datetime.fromisoformat(release.date).timestamp()) for release in lock.apt.releases.values())


def groups_of(stack: Stack) -> Groups:
    """Layer of the stack → the parts that its definition names."""
    return {node.name: node.layer.spec.groups for node in stack.nodes if node.layer.spec.groups}


def export(
    engine: Engine,
    image: str,
    parents: Sequence[str],
    folder: Path,
    *,
    epoch: int,
    groups: Groups | None = None,
    compression: pack.Compression = "gzip",
    limit: int = LIMIT,
    memory: Memory | None = None,
    tell: Tell = lambda text: None,
) -> Layout:
    """Write an image and its parents into `folder`, which needs room for the unpacked image while this runs.

    With `memory`, layers that were packed before and are present where they go are not read and not written: their
    content cannot be had from the result. Raises EngineError where the engine fails or a parent is none, InputError for
    a file that no layer may hold.
    """
    stack = cuts(engine, image, parents)
    how = _How(folder / "blobs" / "sha256", epoch, groups or {}, compression, limit, tell)
    how.blobs.mkdir(parents=True, exist_ok=True)
    try:
        layers = _layers(engine, stack, how, memory)
    except Unread:
        # a file of a layer that was not read is needed after all
        layers = _layers(engine, stack, how, None)
    if sum(len(steps) for steps in layers) > MOST_LAYERS:
        raise InputError(
            f"the image would have more than {MOST_LAYERS} layers", cure="name fewer groups in its layer.toml files"
        )
    packed: dict[str, Packed] = {}
    held: dict[str, tuple[Layer, ...]] = {}
    for number, cut in enumerate(stack):
        held[cut.ref] = tuple(layer for step in layers[: number + 1] for layer in step)
        packed[cut.ref] = _packed(cut, held[cut.ref], how.blobs, epoch)
    _write_index(folder, packed)
    return Layout(folder, packed, held)


@dataclass(frozen=True, slots=True)
class _How:
    """All that decides on the layers but the image, and where they go."""

    blobs: Path
    epoch: int
    groups: Groups
    compression: pack.Compression
    limit: int
    tell: Tell


def _layers(engine: Engine, stack: Sequence[Cut], how: _How, memory: Memory | None) -> list[tuple[Layer, ...]]:
    """The layers that each image of the stack adds, lowest first."""
    named = keys(stack, how.groups, [how.epoch, how.compression, how.limit])
    known = [memory.find(name) if memory else None for name in named]
    if all(known):
        return [_remembered(cut, found) for cut, found in zip(stack, known, strict=True) if found]
    raws = {name: layer for found in known if found for name, layer in found.raw.items()}
    with tempfile.TemporaryDirectory(prefix=".export-", dir=how.blobs.parent.parent) as work:
        how.tell(f"reading {stack[-1].ref}")
        raw = read_image(engine, stack[-1].ref, spool=lambda number: (Path(work) / str(number)).open("wb"), known=raws)
        if raw.diff_ids != stack[-1].diff_ids:
            raise EngineError(Problem(f"{stack[-1].ref} was replaced while it was read", cure="do it again"))
        return _write(raw, stack, known, Path(work), how, memory, named)


def _write(
    raw: RawImage,
    stack: Sequence[Cut],
    known: Sequence[Remembered | None],
    work: Path,
    how: _How,
    memory: Memory | None,
    named: Sequence[str],
) -> list[tuple[Layer, ...]]:
    made: list[tuple[Layer, ...]] = []
    tree: Tree = {}
    below: Tree = {}
    begin = 0
    with ExitStack() as files:
        opened: dict[int, IO[bytes]] = {}

        def spool(number: int) -> IO[bytes]:
            if number not in opened:
                opened[number] = files.enter_context((work / str(number)).open("rb"))
            return opened[number]

        read = pack.reader(spool)
        for cut, found, name in zip(stack, known, named, strict=True):
            for layer in raw.layers[begin : cut.count]:
                apply(tree, layer.entries, layer.gone, layer.opaque)
            now = settled(below, normal(tree, how.epoch))
            if found:
                made.append(_remembered(cut, found))
            else:
                own = change(below, now)
                parts = split(own.entries, own.gone, how.groups.get(cut.name, {}), limit=how.limit)
                made.append(tuple(_packed_part(cut, part, now, read, how) for part in parts))
                if memory:
                    rows = tuple(Row(row.part, row.content.descriptor, row.diff_id, row.size) for row in made[-1])
                    own_names = dict(zip(raw.names[begin : cut.count], raw.layers[begin : cut.count], strict=True))
                    memory.keep(name, Remembered(rows, own_names))
            below, begin = now, cut.count
    return made


def _packed_part(cut: Cut, part: Part, now: Tree, read: pack.Read, how: _How) -> Layer:
    how.tell(f"{cut.name}: packing {part.name}, {part.size / 1e6:,.0f} MB")
    whole = Part(part.name, with_folders(Change(part.entries, part.gone), now), part.gone)
    written = pack.write(whole, read, how.blobs, how.compression)
    return Layer(cut.name, part.name, _blob(how.blobs, written.descriptor), written.diff_id, written.size)


def _remembered(cut: Cut, found: Remembered) -> tuple[Layer, ...]:
    def absent(digest: str) -> Callable[[int], Iterator[bytes]]:
        def read(offset: int) -> Iterator[bytes]:
            raise EngineError(Problem(f"the layer {digest} was there a moment ago", cure="push again"))

        return read

    return tuple(
        Layer(cut.name, row.part, Content(row.descriptor, absent(row.descriptor.digest)), row.diff_id, row.size)
        for row in found.rows
    )


def _packed(cut: Cut, layers: Sequence[Layer], blobs: Path, epoch: int) -> Packed:
    rows = [(layer.diff_id, f"strix-finetune {layer.stack_layer}: {layer.part}") for layer in layers]
    text = config(cut.raw, rows, epoch)
    described = Content.of(CONFIG, text)
    manifest = image_manifest(described.descriptor, tuple(layer.content.descriptor for layer in layers), {})
    for content in (text, manifest):
        _save(blobs, content)
    return Packed(manifest, described, tuple(layer.content for layer in layers))


def _blob(blobs: Path, descriptor: Descriptor) -> Content:
    path = blobs / descriptor.digest.removeprefix("sha256:")

    def read(offset: int) -> Iterator[bytes]:
        with path.open("rb") as stream:
            stream.seek(offset)
            while block := stream.read(_BLOCK):
                yield block

    return Content(descriptor, read)


def _save(blobs: Path, content: bytes) -> None:
    from strix_finetune.oci.descriptor import digest_of

    leftovers.write(blobs / digest_of(content).removeprefix("sha256:"), content)


def _write_index(folder: Path, packed: Mapping[str, Packed]) -> None:
    """What makes the folder an OCI image layout. Images of earlier exports stay in it under their names."""
    path = folder / "index.json"
    held: dict[str, object] = {}
    if path.is_file():
        held = {row["annotations"][_REF]: row for row in json.loads(path.read_bytes())["manifests"]}
    for ref, image in packed.items():
        held[ref] = Descriptor.of(MANIFEST, image.manifest, annotations={_REF: ref}).as_json()
    leftovers.write(folder / "oci-layout", canonical({"imageLayoutVersion": "1.0.0"}))
    rows = [held[ref] for ref in sorted(held)]
    leftovers.write(path, canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}))
