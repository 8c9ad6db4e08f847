"""What the engine's store holds of this project, with the size that each layer adds to its parent."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from strix_finetune import budget, names
from strix_finetune.engine.base import Engine, Image


@dataclass(frozen=True, slots=True)
class Row:
    """One image. Sizes in bytes: `size` unpacked, `adds` over its parent, `compressed` as in a registry (or None).

    `current`: whether the layer's moving name is on it; older builds of a layer lie beside it until they are removed.
    """

    name: str
    layer: str
    target: str
    channel: str
    key: str
    id: str
    tags: tuple[str, ...]
    size: int
    adds: int | None
    compressed: int | None
    notice: str
    current: bool

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def inventory(engine: Engine, *, compressed: bool = False) -> list[Row]:
    """Every tagged image of the project, grouped by target, parents before children (the smaller is the parent)."""
    found = [image for image in engine.images(names.KEY) if image.tags]
    by_key = {(image.labels.get(names.TARGET), image.labels[names.KEY][: names.KEY_DIGITS]): image for image in found}
    sizes = {image.id: budget.unpacked(engine, image.id) for image in found}
    rows = [_row(engine, image, by_key, sizes, compressed) for image in found]
    return sorted(rows, key=lambda row: (row.target, row.channel, row.size, row.layer))


def _row(
    engine: Engine,
    image: Image,
    by_key: dict[tuple[str | None, str], Image],
    sizes: dict[str, int],
    compressed: bool,
) -> Row:
    import json

    labels = image.labels
    parts: dict[str, str] = json.loads(labels.get(names.PARTS) or "{}")
    parents = [
        held
        for name, key in parts.items()
        if name.startswith("parent ") and (held := by_key.get((labels.get(names.TARGET), key)))
    ]
    whole = sizes[image.id]
    # a layer has one parent; where it has a base of its own, all of it is its own
    adds = None if any(name.startswith("parent ") for name in parts) else whole
    for held in parents:
        adds = whole - sizes[held.id]
    size = None
    if compressed:
        from strix_finetune.engine.size import compressed_size

        size = compressed_size(engine, image.id)
    return Row(
        name=min(image.tags, key=len),
        layer=labels.get(names.LAYER, ""),
        target=labels.get(names.TARGET, ""),
        channel=labels.get(names.CHANNEL, ""),
        key=labels[names.KEY],
        id=image.id,
        tags=tuple(sorted(image.tags)),
        size=whole,
        adds=adds,
        compressed=size,
        notice=labels.get(names.NOTICE, ""),
        current=names.moving_ref(labels.get(names.LAYER, ""), labels.get(names.TARGET, "")) in image.tags,
    )
