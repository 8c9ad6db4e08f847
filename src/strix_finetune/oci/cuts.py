"""Which of an image's layers each image of its stack has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strix_finetune import names
from strix_finetune.engine.base import Engine
from strix_finetune.errors import EngineError, Problem
from strix_finetune.oci.config import labels
from strix_finetune.oci.inspected import configuration
from strix_finetune.oci.memory import key


@dataclass(frozen=True, slots=True)
class Cut:
    """One image of the stack: the engine's layers that it has, its configuration, and its layer of the stack."""

    ref: str
    diff_ids: tuple[str, ...]
    raw: Mapping[str, Any]

    @property
    def count(self) -> int:
        return len(self.diff_ids)

    @property
    def name(self) -> str:
        return labels(self.raw).get(names.LAYER, "image")


def cuts(engine: Engine, image: str, parents: Sequence[str]) -> tuple[Cut, ...]:
    """The stack of an image, lowest first, the image itself last. Raises EngineError where a parent is none."""
    top = _cut(engine, image)
    found = [_cut(engine, ref) for ref in parents]
    below = [cut if _begins(top, cut) else _before(engine, top, cut) for cut in found]
    return (*sorted(below, key=lambda cut: cut.count), top)


def _begins(top: Cut, cut: Cut) -> bool:
    return top.diff_ids[: cut.count] == cut.diff_ids


def _before(engine: Engine, top: Cut, cut: Cut) -> Cut:
    """The image of the same key that `top` stands on: it was built anew since, and by its key it is the same."""
    key = labels(cut.raw).get(names.KEY)
    for image in engine.images(names.KEY) if key else ():
        if image.labels[names.KEY] == key:
            other = _cut(engine, image.id)
            if _begins(top, other):
                return Cut(cut.ref, other.diff_ids, other.raw)
    raise EngineError(
        Problem(f"{top.ref} was not built on the present {cut.ref}", cure="run 'strix-finetune build --rebuild' for it")
    )


def keys(stack: Sequence[Cut], groups: Mapping[str, Mapping[str, Sequence[str]]], how: Sequence[object]) -> list[str]:
    """What each image of a stack is remembered under. `how`: all else that decides on its layers."""
    found: list[str] = []
    below: list[object] = []
    for cut in stack:
        below.append([cut.count, {name: list(globs) for name, globs in groups.get(cut.name, {}).items()}])
        found.append(key([list(cut.diff_ids), list(below), *how]))
    return found


def _cut(engine: Engine, ref: str) -> Cut:
    said = configuration(engine, ref)
    return Cut(ref, tuple(said["rootfs"]["diff_ids"]), said)
