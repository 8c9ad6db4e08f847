"""Where a newer image comes from before a container is made anew: a registry, or the engine that built the last one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strix_finetune import names
from strix_finetune.engine.base import EngineKind
from strix_finetune.engine.select import connect
from strix_finetune.errors import EngineUnavailable, InputError, Problem

# names the repository that images are pulled from
REGISTRY = "STRIX_REGISTRY"


@dataclass(frozen=True, slots=True)
class Source:
    """`repository`: to pull from; else `engine`: to build with, which has the layers of the last build."""

    repository: str = ""
    engine: EngineKind = "podman"


def source(repository: str, root: str, target: str, env: Mapping[str, str]) -> Source:
    """Decide it. `root`: the first layer of the stack, which only an engine has that built the stack itself.

    `repository` is what the command line names. STRIX_REGISTRY counts where nothing was built here. Raises InputError
    where there is neither: a build from nothing takes hours, and is not what anybody expects here.
    """
    if repository:
        return Source(repository)
    kinds: tuple[EngineKind, ...] = ("podman", "docker")
    for kind in kinds:
        try:
            engine = connect(kind, env)
        except EngineUnavailable:
            continue
        try:
            if engine.image(names.moving_ref(root, target)) is not None:
                return Source(engine=kind)
        finally:
            engine.close()
    if env.get(REGISTRY):
        return Source(env[REGISTRY])
    what = f"the image for {target} was not built on this machine, so there is nothing to build it anew from"
    cure = "--from HOST/NAME pulls a newer one; --as-is takes the one that is here; or run 'strix-finetune build' once"
    raise InputError(Problem(what, cure=cure))
