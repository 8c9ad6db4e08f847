"""`pull`: the release of a target, verified, loaded and named as if it had been built here."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strix_finetune import names
from strix_finetune.engine.base import Engine
from strix_finetune.errors import InputError, Problem
from strix_finetune.events import Emit, LayerDone, LayerStarted, Notice, Pulled
from strix_finetune.oci.descriptor import Descriptor
from strix_finetune.registry import loading, release, trust
from strix_finetune.registry.client import Registry, Served
from strix_finetune.registry.faults import Untrusted
from strix_finetune.registry.release import Offer, Release
from strix_finetune.tags import move_tags

if TYPE_CHECKING:
    from strix_finetune.supply.keyring import Trusted


@dataclass(frozen=True, slots=True)
class Found:
    """A release in a registry and the manifest of its final image, both held against themselves."""

    served: Served
    release: Release
    offer: Offer
    place: str


def find(registry: Registry, reference: str, target: str, known: Collection[str] = ()) -> Found:
    """What the registry has for a target as `reference`, a tag or digest of an index.

    `known`: the targets that a cure may name. Raises InputError where it has nothing, Untrusted where it is not what it
    says.
    """
    place = registry.repository.at(reference)
    served = registry.manifest(reference)
    if served is None:
        raise _nothing(registry, reference, target, known)
    try:
        found = release.read_release(served)
        first = found.images[0]
        if found.annotations.get(names.TARGET) != target:
            raise ValueError(f"it is made for {found.annotations.get(names.TARGET, 'nothing')}, not {target}")
        image = registry.manifest(first.digest)
        if image is None:
            raise ValueError("the image that it names is not there")
        offer = trust.offered(image, place, target=target)
        _agree(first, offer, found)
    except ValueError as error:
        cure = "check the repository; it should be filled by 'strix-finetune push'"
        raise Untrusted(Problem(f"{place} cannot be used: {error}", cure=cure)) from None
    return Found(served, found, offer, place)


def pull(
    engine: Engine,
    registry: Registry,
    found: Found,
    target: str,
    folder: Path,
    emit: Emit,
    keys: Sequence[Trusted] | None = None,
) -> Pulled:
    """Load what was found and move this project's local names to it; none moves unless all is right.

    Blobs lie below `folder` until they are loaded. With `keys` one of them must have signed it.
    """
    began = time.monotonic()
    layer, key = found.offer.annotations[names.LAYER], found.offer.annotations[names.KEY]
    emit(LayerStarted(layer, f"{found.place}, key {key[: names.KEY_DIGITS]}", "", "pull"))
    tags = (names.final_ref(target), names.layer_ref(layer, target, key), names.moving_ref(layer, target))
    with loading.taken(engine, registry, found.offer, found.place, folder, emit, keys=keys) as taken:
        move_tags(engine, taken.image, tags)
    seconds = time.monotonic() - began
    held = engine.image(taken.image)
    emit(LayerDone(layer, "pulled", seconds, taken.image, held.size if held else 0))
    if notice := taken.config.labels.get(names.NOTICE):
        emit(Notice(notice))
    state = found.release.annotations.get(names.DEVICE_TESTS, "")
    if state in ("not-run", "failed"):
        emit(Notice(f"tests on a GPU of {found.place}: {state.replace('-', ' ')}; try 'strix-finetune smoke'"))
    result = Pulled(str(registry.repository), tags[0], taken.image, key, found.served.digest, taken.received, seconds)
    emit(result)
    return result


def _agree(row: Descriptor, offer: Offer, found: Release) -> None:
    """What the index says of an image must be what the image says. Raises ValueError."""
    for name in (names.KEY, names.LAYER):
        if row.annotations.get(name) != offer.annotations.get(name):
            raise ValueError(f"its index and its image name another {name.rpartition('.')[2]}")
    for name in (names.TARGET, names.CHANNEL, names.KEY):
        if found.annotations.get(name) != offer.annotations.get(name):
            raise ValueError(f"its index and its image name another {name.rpartition('.')[2]}")


def _nothing(registry: Registry, reference: str, target: str, known: Collection[str]) -> InputError:
    there = sorted(set(registry.tags()) & set(known))
    cure = f"it has images for {', '.join(there)}: name one" if there else "check the name of the repository"
    what = f"no image for {target}" if reference == target else f"no '{reference}'"
    return InputError(Problem(f"{registry.repository} has {what}", cure=cure))
