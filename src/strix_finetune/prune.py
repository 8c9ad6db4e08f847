"""Which images may go: pure. It sees what is in a store and what uses it, and says of each image why.

Only images with this project's labels are looked at. One is kept while anything refers to it: a name that moves or
that somebody gave, a container, an image that stands on it; so are the newest few of each layer, and the young ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from strix_finetune import names
from strix_finetune.engine.stored import Stored, Use
from strix_finetune.errors import InputError

# an image without a name that is this young may be in the middle of its smoke tests
_HOUR = 3600.0
_UNITS = {"h": _HOUR, "d": 24 * _HOUR, "w": 7 * 24 * _HOUR}


@dataclass(frozen=True, slots=True)
class Policy:
    """`keep`: how many of each layer of a target stay, the newest. `older`: seconds; what is younger stays."""

    keep: int
    older: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """`keep`: why an image stays, empty where it goes."""

    image: Stored
    keep: str

    @property
    def layer(self) -> str:
        return self.image.labels.get(names.LAYER, "")

    @property
    def shown(self) -> str:
        return min(self.image.tags, key=len) if self.image.tags else f"{self.layer} {self.image.id[7:19]}"


def seconds(text: str) -> float:
    """An age: a number with h, d or w ("36h", "14d"), or 0. Raises InputError for anything else."""
    found = re.fullmatch(r"(\d{1,6})([hdw]?)", text.strip())
    if not found or (not found[2] and int(found[1])):
        raise InputError(f"'{text}' is no age", cure="write a number of hours, days or weeks: 36h, 14d, 2w")
    return int(found[1]) * _UNITS.get(found[2], 0.0)


def ours(image: Stored) -> bool:
    return bool(image.labels.get(names.KEY) and image.labels.get(names.LAYER) and image.labels.get(names.TARGET))


def decide(images: Sequence[Stored], uses: Iterable[Use], policy: Policy, now: float) -> list[Verdict]:
    """Every image of this project with its verdict, newest first. `now` in seconds since 1970."""
    mine = sorted((image for image in images if ours(image)), key=lambda image: (-image.created, image.id))
    containers = {use.image: use.container for use in uses}
    newest: dict[tuple[str, ...], int] = {}
    kept: dict[str, str] = {}
    for image in mine:
        group = tuple(image.labels.get(label, "") for label in (names.LAYER, names.TARGET, names.CHANNEL))
        place = newest[group] = newest.get(group, 0) + 1
        age = now - image.created
        reason = _named(image)
        if image.id in containers:
            reason = reason or f"the container {containers[image.id]} was made of it"
        if place <= policy.keep and image.tags:
            reason = reason or f"among the newest {policy.keep} of its layer"
        if age < policy.older or (not image.tags and age < _HOUR):
            reason = reason or "young"
        if reason:
            kept[image.id] = reason
    _close(images, mine, kept)
    return [Verdict(image, kept.get(image.id, "")) for image in mine]


def _named(image: Stored) -> str:
    """The name that keeps an image: any but the one of its own key, which every build leaves behind."""
    # one image may be a layer of several targets
    repository, _, of_key = names.layer_ref(image.labels[names.LAYER], "", image.labels[names.KEY]).rpartition(":")
    others = [tag for tag in image.tags if not (tag.startswith(f"{repository}:") and tag.endswith(of_key))]
    others.sort(key=len)
    return f"named {others[0]}" if others else ""


def _close(images: Sequence[Stored], mine: Sequence[Stored], kept: dict[str, str]) -> None:
    """Keep what kept images stand on, and what those do."""
    foreign = [image for image in images if not ours(image)]
    changed = True
    while changed:
        changed = False
        staying = [*foreign, *(image for image in mine if image.id in kept)]
        for image in mine:
            if image.id in kept:
                continue
            above = next((other for other in staying if _stands_on(other, image)), None)
            if above is not None:
                kept[image.id] = f"{min(above.tags, key=len) if above.tags else above.id[7:19]} stands on it"
                changed = True


def _stands_on(upper: Stored, lower: Stored) -> bool:
    """By its layers, or by what its label says that it was made of."""
    if lower.layers and len(upper.layers) >= len(lower.layers) and upper.layers[: len(lower.layers)] == lower.layers:
        return True
    if upper.labels.get(names.TARGET) != lower.labels[names.TARGET]:
        return False
    try:
        parts = json.loads(upper.labels.get(names.PARTS, "{}"))
        key = parts.get(f"parent {lower.labels[names.LAYER]}")
    except (ValueError, AttributeError, RecursionError):
        return False
    return bool(key) and lower.labels[names.KEY].startswith(str(key))


def freed(images: Sequence[Stored], verdicts: Sequence[Verdict], sizes: Callable[[Stored], Sequence[int]]) -> int:
    """Bytes of the layers that only images have which go. `sizes`: bytes of each layer of an image, lowest first."""
    going = {verdict.image.id for verdict in verdicts if not verdict.keep}
    held = {chain for image in images if image.id not in going for chain in _chains(image)}
    lost: dict[tuple[str, ...], int] = {}
    for image in images:
        if image.id in going:
            lost |= {
                chain: size
                for chain, size in zip(_chains(image), sizes(image), strict=True)
                if chain not in held and chain not in lost
            }
    return sum(lost.values())


def _chains(image: Stored) -> list[tuple[str, ...]]:
    """A layer is another one on other layers below."""
    return [image.layers[: number + 1] for number in range(len(image.layers))]
