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

from strix_finetune import names
from strix_finetune.engine.base import Engine
from strix_finetune.errors import EngineError, InputError, Problem
from strix_finetune.lockmodel import Lock
from strix_finetune.model import Stack
from strix_finetune.oci import pack
from strix_finetune.oci.config import config, labels
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
from strix_finetune.oci.normal import normal, settled
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
    tell: Tell = lambda text: None,
) -> Layout:
    """Write an image and its parents into `folder`, which needs room for the unpacked image while this runs.

    Raises EngineError where the engine fails or a parent is none, InputError for a file that no layer may hold.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder) as work:
        tell(f"reading {image}")
        raw = read_image(engine, image, spool=lambda number: (Path(work) / str(number)).open("wb"))
        cuts = _cuts(engine, image, parents, raw)
        layers = _write(raw, cuts, Path(work), blobs, epoch, groups or {}, compression, limit, tell)
    packed: dict[str, Packed] = {}
    held: dict[str, tuple[Layer, ...]] = {}
    for cut in cuts:
        held[cut.ref] = tuple(layer for step in layers[: cuts.index(cut) + 1] for layer in step)
        packed[cut.ref] = _packed(cut, held[cut.ref], blobs, epoch)
    _write_index(folder, packed)
    return Layout(folder, packed, held)


@dataclass(frozen=True, slots=True)
class _Cut:
    """One image of the stack: how many of the engine's layers it has, and its configuration."""

    ref: str
    count: int
    raw: Mapping[str, object]
    name: str


def _cuts(engine: Engine, image: str, parents: Sequence[str], raw: RawImage) -> tuple[_Cut, ...]:
    """Where in the layers of the image its parents end, lowest first, the image itself last."""
    from strix_finetune.oci.inspected import configuration

    found = [_Cut(image, len(raw.layers), raw.config, labels(raw.config).get(names.LAYER, "image"))]
    for ref in parents:
        said = configuration(engine, ref)
        ids = tuple(said["rootfs"]["diff_ids"])
        if raw.diff_ids[: len(ids)] != ids:
            raise EngineError(
                Problem(
                    f"{image} was not built on the present {ref}", cure="run 'strix-finetune build --rebuild' for it"
                )
            )
        found.append(_Cut(ref, len(ids), said, labels(said).get(names.LAYER, "image")))
    return tuple(sorted(found, key=lambda cut: cut.count))


def _write(
    raw: RawImage,
    cuts: Sequence[_Cut],
    work: Path,
    blobs: Path,
    epoch: int,
    groups: Groups,
    compression: pack.Compression,
    limit: int,
    tell: Tell,
) -> list[tuple[Layer, ...]]:
    """The layers that each image of the stack adds, lowest first."""
    made: list[tuple[Layer, ...]] = []
    tree: Tree = {}
    below: Tree = {}
    begin = 0
    with ExitStack() as stack:
        opened: dict[int, IO[bytes]] = {}

        def spool(number: int) -> IO[bytes]:
            if number not in opened:
                opened[number] = stack.enter_context((work / str(number)).open("rb"))
            return opened[number]

        read = pack.reader(spool)
        for cut in cuts:
            for layer in raw.layers[begin : cut.count]:
                apply(tree, layer.entries, layer.gone, layer.opaque)
            begin = cut.count
            now = settled(below, normal(tree, epoch))
            own = change(below, now)
            steps: list[Layer] = []
            for part in split(own.entries, own.gone, groups.get(cut.name, {}), limit=limit):
                tell(f"{cut.name}: packing {part.name}, {part.size / 1e6:,.0f} MB")
                whole = Part(part.name, with_folders(Change(part.entries, part.gone), now), part.gone)
                written = pack.write(whole, read, blobs, compression)
                content = _blob(blobs, written.descriptor)
                steps.append(Layer(cut.name, part.name, content, written.diff_id, written.size))
            made.append(tuple(steps))
            below = now
    if sum(len(steps) for steps in made) > MOST_LAYERS:
        raise InputError(
            f"the image would have more than {MOST_LAYERS} layers", cure="name fewer groups in its layer.toml files"
        )
    return made


def _packed(cut: _Cut, layers: Sequence[Layer], blobs: Path, epoch: int) -> Packed:
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

    _replace(blobs / digest_of(content).removeprefix("sha256:"), content)


def _replace(path: Path, content: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as folder:
        temporary = Path(folder, path.name)
        temporary.write_bytes(content)
        temporary.replace(path)


def _write_index(folder: Path, packed: Mapping[str, Packed]) -> None:
    """What makes the folder an OCI image layout. Images of earlier exports stay in it under their names."""
    path = folder / "index.json"
    held: dict[str, object] = {}
    if path.is_file():
        held = {row["annotations"][_REF]: row for row in json.loads(path.read_bytes())["manifests"]}
    for ref, image in packed.items():
        held[ref] = Descriptor.of(MANIFEST, image.manifest, annotations={_REF: ref}).as_json()
    _replace(folder / "oci-layout", canonical({"imageLayoutVersion": "1.0.0"}))
    rows = [held[ref] for ref in sorted(held)]
    _replace(path, canonical({"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}))
