"""What the engine's store holds of this project, with the size that each layer adds to its parent."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from strix_finetune import names
from strix_finetune.engine.base import Engine, Image


@dataclass(frozen=True, slots=True)
class Row:
    """One image. Sizes in bytes: `size` unpacked, `adds` over its parent, `compressed` as in a registry (or None)."""

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

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def inventory(engine: Engine, *, compressed: bool = False) -> list[Row]:
    """Every tagged image of the project, grouped by target, parents before children (the smaller is the parent)."""
    found = [image for image in engine.images(names.KEY) if image.tags]
    by_key = {(image.labels.get(names.TARGET), image.labels[names.KEY][: names.KEY_DIGITS]): image for image in found}
    rows = [_row(engine, image, by_key, compressed) for image in found]
    return sorted(rows, key=lambda row: (row.target, row.channel, row.size, row.layer))


def _row(engine: Engine, image: Image, by_key: dict[tuple[str | None, str], Image], compressed: bool) -> Row:
    import json

    labels = image.labels
    parts: dict[str, str] = json.loads(labels.get(names.PARTS) or "{}")
    parents = [
        held
        for name, key in parts.items()
        if name.startswith("parent ") and (held := by_key.get((labels.get(names.TARGET), key)))
    ]
    # of a parent and builders, the parent is the one that this image begins with: never larger than it
    below = [held.size for held in parents if held.size <= image.size]
    adds = image.size - max(below) if below else (None if any(n.startswith("parent ") for n in parts) else image.size)
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
        size=image.size,
        adds=adds,
        compressed=size,
        notice=labels.get(names.NOTICE, ""),
    )
