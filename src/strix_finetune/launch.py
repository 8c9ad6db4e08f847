"""The right flags to run the image on this host, with the least privilege: pure, given what the host is like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from strix_finetune.engine.base import EngineInfo, Mount, RunRequest
from strix_finetune.errors import InputError, Place, Problem

# inside the image
MODELS = "/models"
HUB = "/hub"
RECIPES = "/opt/strix-finetune/recipes"
# tmpfs pages are only taken when they are used; 64 MiB, the engines' default, breaks data loaders and RCCL
SHM_BYTES = 8 << 30
# what a user sets for the training itself; never HSA_*, HIP_* or LD_PRELOAD, which break ROCm from afar
PASSED = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "OMP_NUM_THREADS", "WANDB_MODE", "NO_COLOR", "TERM")


@dataclass(frozen=True, slots=True)
class Host:
    """What the launcher has to know. `devices`: device files of the GPUs; `groups`: numeric owners of them."""

    uid: int
    gid: int
    workdir: Path
    models: Path
    hub: Path
    env: Mapping[str, str]
    devices: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    interactive: bool = False


def request(
    image: str, command: Sequence[str], host: Host, engine: EngineInfo, extra: Sequence[Path] = (), key: str = ""
) -> RunRequest:
    """A run of `command` in the current folder, which is mounted at its own path and stays the caller's.

    `extra`: folders that are mounted read-only at their own paths. `key`: of the image, for the run's records.
    """
    mounts = [Mount(str(host.workdir), str(host.workdir))]
    mounts += [
        Mount(str(path), str(path), read_only=True) for path in dict.fromkeys(extra) if not _within(path, host.workdir)
    ]
    mounts += [Mount(str(host.models), MODELS, read_only=True), Mount(str(host.hub), HUB)]
    rootless_podman = engine.kind == "podman" and engine.rootless
    # numeric groups would be looked up in the wrong user namespace there: keep-groups alone is right
    groups = ("keep-groups",) if rootless_podman and host.devices else host.groups
    env = {"STRIX_MODELS": MODELS, "HF_HOME": HUB}
    env |= {"STRIX_IMAGE_KEY": key} if key else {}
    env |= {name: host.env[name] for name in PASSED if name in host.env}
    return RunRequest(
        image=image,
        command=tuple(command),
        env=env,
        mounts=tuple(mounts),
        devices=host.devices,
        group_add=groups,
        # rootless Docker's root is the caller: any other user id would own nothing
        user="" if engine.rootless else f"{host.uid}:{host.gid}",
        keep_id=rootless_podman,
        shm_size=SHM_BYTES,
        workdir=str(host.workdir),
        interactive=host.interactive,
    )


def recipe_argument(name: str, workdir: Path) -> tuple[str, tuple[Path, ...]]:
    """How a recipe is called inside, and the folders that it needs: a file of the user, or one that ships.

    A bare name such as `demo` is a recipe of the image; anything else must be a file here and now, since a missing
    one would surface as a confusing error inside.
    """
    path = Path(name)
    if path.is_file():
        full = (workdir / path).resolve()
        return str(full), (full.parent,)
    if path.suffix in (".yaml", ".yml") or "/" in name:
        raise InputError(
            Problem("the recipe does not exist", Place(path), "check the path; 'train recipes' lists ours")
        )
    return f"{RECIPES}/{name}.yaml", ()


def _within(path: Path, folder: Path) -> bool:
    return path == folder or path.is_relative_to(folder)
