"""Whether what a registry holds is the image here: a statement about somebody else's image would be a false one.

An image that was built here has another id than what was pushed of it: its layers are made anew so that they repeat
byte for byte. So it is packed once more, and what comes out must be what the registry has.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from strix_finetune.engine.base import Engine
from strix_finetune.errors import Problem
from strix_finetune.oci import layout
from strix_finetune.registry import trust
from strix_finetune.registry.client import Registry
from strix_finetune.registry.faults import Untrusted
from strix_finetune.supply.attached import Place
from strix_finetune.supply.subject import Subject


def check(
    engine: Engine,
    registry: Registry,
    subjects: Sequence[Subject],
    places: Sequence[Place],
    cache: Path,
    tell: Callable[[str], None],
) -> None:
    """Hold images against what a registry has of them; the first stands on all others.

    `cache` needs room for the unpacked image while this runs. Raises Untrusted where one is another.
    """
    pairs = list(zip(subjects, places, strict=True))
    built = [(one, place) for one, place in pairs if not _pulled(engine, registry, one, place)]
    if not built:
        return
    made = _configurations(engine, subjects[0], cache, tell)
    for one, place in built:
        if made.get(one.image.id) != place.offer.config.digest:
            raise Untrusted(
                Problem(
                    f"{place.name} is another image than {one.ref} here, though its key is the same",
                    cure="look at it with 'strix-finetune diff', or pull it and sign what you pulled",
                )
            )


def _pulled(engine: Engine, registry: Registry, subject: Subject, place: Place) -> bool:
    """Whether an image is what the registry has, as it is: it has the same configuration, which names its layers."""
    # the id of an image is the digest of its configuration, unless the engine keeps images in a way of its own
    if subject.image.id == place.offer.config.digest:
        return True
    there = trust.check_config(registry.small(place.offer.config), place.offer, place.name)
    here = engine.configuration(subject.image.id)
    if here is None:
        return False
    layers = tuple(here.get("rootfs", {}).get("diff_ids") or ())
    return layers == there.diff_ids and dict(subject.image.labels) == dict(there.labels)


def _configurations(engine: Engine, subject: Subject, cache: Path, tell: Callable[[str], None]) -> dict[str, str]:
    """Image id → the digest of its configuration as it would be pushed, of an image and all that it stands on."""
    known = subject.known
    assert known is not None
    below = [parent.image.id for parent in subject.parents(engine)]
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sign-", dir=cache) as folder:
        stack = known.workspace.stack
        epoch, groups = layout.lock_epoch(known.lock), layout.groups_of(stack)
        made = layout.export(engine, subject.image.id, below, Path(folder), epoch=epoch, groups=groups, tell=tell)
        return {image: packed.config.descriptor.digest for image, packed in made.packed.items()}
