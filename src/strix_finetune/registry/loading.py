"""Blobs from a registry into an engine's store: only the layers that it lacks travel."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strix_finetune import names
from strix_finetune.engine import saved
from strix_finetune.engine.base import Engine
from strix_finetune.errors import EngineError, Problem
from strix_finetune.events import Emit, Notice
from strix_finetune.model import Keyed
from strix_finetune.oci.descriptor import Descriptor
from strix_finetune.registry import moves, trust
from strix_finetune.registry.client import Registry
from strix_finetune.registry.release import Offer
from strix_finetune.registry.signed import check_signed
from strix_finetune.registry.together import Check
from strix_finetune.registry.trust import Config

if TYPE_CHECKING:
    from strix_finetune.supply.keyring import Trusted


@dataclass(frozen=True, slots=True)
class Taken:
    """An image that is in the engine's store now. `received`: bytes of blobs that were fetched."""

    image: str
    config: Config
    received: int


@contextmanager
def taken(
    engine: Engine,
    registry: Registry,
    offer: Offer,
    place: str,
    folder: Path,
    emit: Emit,
    *,
    wanted: Keyed | None = None,
    keys: Sequence[Trusted] | None = None,
    check: Check = lambda: None,
) -> Iterator[Taken]:
    """Verify an image by its configuration, fetch the layers that the engine lacks, and load it.

    `offer` is one that `trust` made. With `keys` one of them must have signed it. Blobs lie in `folder` until they
    are loaded; those of an attempt that was cut off are gone on with. The image stays if it has a name when the block
    ends. Raises Untrusted, another RegistryError, or EngineError.
    """
    config = trust.check_config(registry.small(offer.config), offer, place, wanted)
    if keys is not None:
        emit(Notice(f"{place} is signed by {check_signed(registry, offer, place, keys)}"))
    told, digest = offer.annotations, offer.config.digest
    name = f"{names.PREFIX}/pulled:{digest.removeprefix('sha256:')[:32]}"
    mine = names.layer_ref(told[names.LAYER], told[names.TARGET], told[names.KEY])
    found, received = _here(engine, config, (digest, mine)), 0
    try:
        if found is None:
            with _alone(folder / digest.replace(":", "-")) as own:
                received = _load(engine, registry, offer, config, name, own, emit, check)
                shutil.rmtree(own)
            found = _here(engine, config, (name, digest))
        if found is None:
            raise EngineError(Problem(f"the engine loaded {place} as another image than it is", cure="pull again"))
        yield Taken(found, config, received)
    finally:
        engine.untag(name)


def _load(
    engine: Engine,
    registry: Registry,
    offer: Offer,
    config: Config,
    name: str,
    folder: Path,
    emit: Emit,
    check: Check,
) -> int:
    """Fetch and load; returns the bytes that were fetched."""

    def path(what: Descriptor) -> Path:
        return folder / what.digest.replace(":", "-")

    def load(held: int) -> int:
        lacking = offer.layers[held:]
        received = moves.receive(registry, lacking, path, offer.annotations[names.LAYER], emit, check)
        check()
        files = [None] * held + [path(what) for what in lacking]
        engine.load(lambda: archive(config, files, name))
        return received

    held = _held(engine, config.diff_ids)
    try:
        return load(held)
    except EngineError:
        # one that keeps its images in another way wants all of them
        if not held:
            raise
    return load(0)


def _here(engine: Engine, config: Config, refs: Sequence[str]) -> str | None:
    """The id of an image with this very configuration: engines that keep images as registries do have their own ids."""
    for ref in refs:
        found = engine.image(ref)
        said = engine.configuration(found.id) if found else None
        if found and said:
            labels = (said.get("config") or {}).get("Labels") or {}
            if (labels, tuple(said["rootfs"]["diff_ids"])) == (dict(config.labels), config.diff_ids):
                return found.id
    return None


@contextmanager
def _alone(folder: Path) -> Iterator[Path]:
    """A folder for the blobs of one image, which no other process fills meanwhile."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    # beside the folder: that is removed in the end
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.mkdir(exist_ok=True)
        yield folder


def archive(config: Config, layers: Sequence[Path | None], name: str) -> Iterator[bytes]:
    """Stream an image for the engine; a layer that it has already is named only."""
    files = [f"{number}.tar" for number in range(len(layers))]
    there = [(file, path) for file, path in zip(files, layers, strict=True) if path is not None]
    return saved.archive(name, "config.json", files, [("config.json", config.content), *there])


def _held(engine: Engine, wanted: tuple[str, ...]) -> int:
    """How many of the lowest layers the engine can take from its own images. Podman wants every layer of an archive."""
    if engine.info.kind != "docker":
        return 0
    best = 0
    for image in engine.images(names.KEY):
        found = engine.configuration(image.id) or {}
        own = (found.get("rootfs") or {}).get("diff_ids") or []
        same = next((number for number, (a, b) in enumerate(zip(own, wanted, strict=False)) if a != b), None)
        best = max(best, min(len(own), len(wanted)) if same is None else same)
    return best
