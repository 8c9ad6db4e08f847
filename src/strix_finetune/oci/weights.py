"""What makes an image large: bytes by layer of the stack, and in it by package or folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from strix_finetune import names
from strix_finetune.engine.base import Engine
from strix_finetune.oci.config import labels
from strix_finetune.oci.inspected import configuration
from strix_finetune.oci.lineage import parents
from strix_finetune.oci.owners import label, owners
from strix_finetune.oci.scan import read_image
from strix_finetune.oci.tree import Entry, Tree, change
from strix_finetune.oci.whole import assembled, keep


@dataclass(frozen=True, slots=True)
class Weight:
    """A package ("deb libc6", "pip torch") or a folder ("/opt/rccl/lib"), the bytes of its files, and how many."""

    name: str
    size: int
    files: int


@dataclass(frozen=True, slots=True)
class LayerWeight:
    """What one layer of the stack adds, the largest first.

    `hidden`: bytes that a step wrote and a later one of the same layer removed or replaced: the engine holds them, and
    a pushed image does not.
    """

    layer: str
    size: int
    hidden: int
    weights: tuple[Weight, ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """All of an image, its lowest layer first. `image`: as it was asked for."""

    image: str
    layers: tuple[LayerWeight, ...]

    @property
    def size(self) -> int:
        return sum(layer.size for layer in self.layers)

    def as_json(self) -> dict[str, Any]:
        return {"image": self.image, "size": self.size, "layers": [asdict(layer) for layer in self.layers]}


def weigh(engine: Engine, ref: str) -> Weights:
    """Weigh an image of the engine. Layers whose own image is gone are weighed together with the one above."""
    cuts = [(_name(engine, name), _count(engine, name)) for name in reversed(parents(engine, ref))]
    raw = read_image(engine, ref, keep=keep)
    cuts.append((_name(engine, ref), len(raw.layers)))
    below: Tree = {}
    begin = 0
    found = []
    for name, count in cuts:
        now = assembled(ref, raw, count)
        owned = owners(now)
        entries = _once(change(below, now.tree).entries)
        sums: dict[str, list[int]] = {}
        for entry in entries:
            row = sums.setdefault(label(entry.path, owned), [0, 0])
            row[0] += entry.size
            row[1] += 1
        rows = [Weight(title, size, files) for title, (size, files) in sums.items() if size]
        size = sum(row.size for row in rows)
        written = sum(entry.size for layer in raw.layers[begin:count] for entry in _once(layer.entries))
        ordered = sorted(rows, key=lambda row: (-row.size, row.name))
        found.append(LayerWeight(name, size, max(0, written - size), tuple(ordered)))
        below, begin = now.tree, count
    return Weights(ref, tuple(found))


def _once(entries: Sequence[Entry]) -> list[Entry]:
    """Files, each once however many names it has."""
    return list({entry.inode if entry.size else (0, entry.path): entry for entry in reversed(entries)}.values())


def _name(engine: Engine, ref: str) -> str:
    return labels(configuration(engine, ref)).get(names.LAYER, "image")


def _count(engine: Engine, ref: str) -> int:
    return len(configuration(engine, ref)["rootfs"]["diff_ids"])
