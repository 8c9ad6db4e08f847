"""Ask a registry which digest a name has today, and what it consists of: no engine, but its login where it has one.

The digest is that of what the tag names, most often an index of platforms; the engine picks its own from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from strix_finetune.errors import LockError
from strix_finetune.netconf import NetSettings
from strix_finetune.registry import client, parts, repository
from strix_finetune.registry.client import Registry
from strix_finetune.registry.parts import Parts
from strix_finetune.registry.repository import Repository

Say = Callable[[str], None]


def at(where: Repository, settings: NetSettings, say: Say) -> Registry:
    """The registry that has images of a channel. `say` hears of longer waits."""
    return client.connect(where, settings, os.environ, say=say)


def digest(name: str, settings: NetSettings, say: Say) -> str:
    """The digest ("sha256:…") of the image that the registry serves as `name` now.

    Raises InputError for a short name, LockError when it has no such image, RegistryError when it cannot be asked.
    """
    where, tag = repository.of_image(name)
    served = at(where, settings, say).manifest(tag)
    if served is None:
        raise _absent(name, where)
    return served.digest


def contents(name: str, digest: str, registry: Registry) -> Parts:
    """The parts of the image `digest` for this machine's platform. Raises as `digest` does."""
    found = parts.read(registry, digest)
    if found is None:
        raise _absent(name, registry.repository)
    return found


def _absent(name: str, where: Repository) -> LockError:
    cure = "check the name and the tag in the channel"
    return LockError(f"the registry {where.host} has no image '{name}'", cure=cure)
