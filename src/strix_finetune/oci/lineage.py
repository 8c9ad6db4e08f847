"""Which images of the store an image stands on: its labels name their keys, and its layers begin with theirs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from strix_finetune import names
from strix_finetune.engine.base import Engine
from strix_finetune.oci.config import labels
from strix_finetune.oci.inspected import configuration


def parents(engine: Engine, ref: str) -> tuple[str, ...]:
    """Names or ids of the images below, nearest first; it ends where the store does not hold one any more."""
    found: list[str] = []
    said = configuration(engine, ref)
    below = tuple(said["rootfs"]["diff_ids"])
    while held := _parent(engine, labels(said), below):
        name, said = held
        below = tuple(said["rootfs"]["diff_ids"])
        found.append(name)
    return tuple(found)


def _parent(engine: Engine, marks: Mapping[str, str], below: tuple[str, ...]) -> tuple[str, dict[str, Any]] | None:
    try:
        parts: dict[str, str] = json.loads(marks.get(names.PARTS) or "{}")
    except ValueError:
        return None
    for part, key in parts.items():
        kind, _, layer = part.partition(" ")
        if kind != "parent":
            continue
        candidates = [names.layer_ref(layer, marks.get(names.TARGET, ""), key)]
        # one that was built anew since has taken the name along
        candidates += [image.id for image in engine.images(names.KEY) if image.labels[names.KEY].startswith(key)]
        for ref in candidates:
            said = engine.configuration(ref)
            if said is not None:
                ids = tuple(said["rootfs"]["diff_ids"])
                if len(ids) < len(below) and below[: len(ids)] == ids:
                    return ref, said
    return None
