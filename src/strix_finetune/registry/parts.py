"""An image in a registry, taken apart: its manifest, or, of an index, the one for this platform, as engines choose."""

from __future__ import annotations

import json
from dataclasses import dataclass

from strix_finetune.errors import Problem
from strix_finetune.key import PLATFORM
from strix_finetune.oci.descriptor import DOCKER_INDEX, INDEX, Descriptor
from strix_finetune.registry import release
from strix_finetune.registry.client import Registry, Served
from strix_finetune.registry.faults import RegistryError


@dataclass(frozen=True, slots=True)
class Parts:
    """`manifests`: what was asked for first, the image's own last. `layers`: lowest first."""

    manifests: tuple[Served, ...]
    config: Descriptor
    layers: tuple[Descriptor, ...]


def read(registry: Registry, reference: str) -> Parts | None:
    """What the image of a tag or digest consists of; None where the registry lacks it.

    Raises RegistryError for what is no image, and where there is none for this platform.
    """
    place = registry.repository.at(reference)
    manifests: list[Served] = []
    try:
        while (served := registry.manifest(reference)) is not None:
            manifests.append(served)
            if served.media_type not in (INDEX, DOCKER_INDEX):
                offer = release.read_offer(served)
                return Parts(tuple(manifests), offer.config, offer.layers)
            reference = _chosen(served)
            if not reference:
                raise RegistryError(Problem(f"{place} has no image for {PLATFORM}", cure="name another one"))
    except ValueError as error:
        raise RegistryError(Problem(f"{place} is no image that can be read: {error}")) from None
    return None


def _chosen(index: Served) -> str:
    """The digest of the first image for this platform, else of the first that names none; empty where all are others'.

    Raises ValueError with a few words for what is no index.
    """
    try:
        rows = [Descriptor.from_json(row) for row in json.loads(index.content)["manifests"]]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"its index cannot be read ({type(error).__name__})") from None
    fitting = [row for row in rows if f"{row.platform.get('os')}/{row.platform.get('architecture')}" == PLATFORM]
    unsaid = [row for row in rows if not row.platform]
    return next((row.digest for row in (*fitting, *unsaid)), "")
