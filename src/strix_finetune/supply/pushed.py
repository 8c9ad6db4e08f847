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
from strix_finetune.registry.faults import Untrusted
from strix_finetune.supply.attached import Place
from strix_finetune.supply.subject import Subject


def check(
    engine: Engine, subjects: Sequence[Subject], places: Sequence[Place], cache: Path, tell: Callable[[str], None]
) -> None:
    """Hold images against what a registry has of them; the first stands on all others.

    `cache` needs room for the unpacked image while this runs. Raises Untrusted where one is another.
    """
    pairs = list(zip(subjects, places, strict=True))
    # the id of an image that was pulled is the digest of its configuration, which names its layers
    built = [(one, place) for one, place in pairs if one.image.id not in place.subjects.values()]
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
