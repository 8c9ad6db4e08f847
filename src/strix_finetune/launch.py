"""The right flags to run the image on this host, with the least privilege.

Pure: a `Launch` is made of what the host is like, which engine answers, what the recipe needs and what was wished for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strix_finetune import hostcdi, hostwsl
from strix_finetune.caches import COMPILED, ENVIRONMENT, HUB, MODELS, TOKEN
from strix_finetune.engine.base import EngineInfo, Mount, RunRequest
from strix_finetune.errors import InputError, Problem
from strix_finetune.recipefacts import RecipeFacts

# tmpfs pages are only taken when they are used; 64 MiB, the engines' default, breaks data loaders and RCCL
SHM_BYTES = 8 << 30
# what a user sets for the training itself; never HSA_*, HIP_* or LD_PRELOAD, which break ROCm from afar
PASSED = (
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
    "TRANSFORMERS_OFFLINE",
    "OMP_NUM_THREADS",
    "WANDB_MODE",
    "NO_COLOR",
    "TERM",
    "COLORTERM",
)
# the hub's token: it travels as a file
SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_STALE = re.compile(r"^(HSA|HIP|ROCR|GPU|AMD)_|^(CUDA_VISIBLE_DEVICES|LD_PRELOAD|LD_LIBRARY_PATH|PYTHONPATH)$")
# folders whose labels the system's own services live by
_SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sbin", "sys", "usr")
_CDI_SINCE = {"podman": (4, 1), "docker": (25, 0)}


@dataclass(frozen=True, slots=True)
class Host:
    """What the launcher has to know of a host.

    `models`, `hub`, `compiled`: folders of the user's that outlive a container. `devices`: device files of the chosen
    GPUs; `groups`: their numeric groups, but root's; `open_to_all`: everybody may use them; `hidden`: GPUs that the
    container does not get. `cdi`: a specification names all of them. `wsl`: what it lends, None elsewhere. `rdma`:
    device files of the network adapters; `locked_memory`: what the caller may lock, in bytes, -1 for any. `selinux`:
    it is enforcing; `selinux_devices`: and lets containers use devices; `foreign`: paths that are somebody else's.
    `token`: a file with the hub's.
    """

    uid: int
    gid: int
    home: Path
    workdir: Path
    models: Path
    hub: Path
    compiled: Path
    env: Mapping[str, str]
    devices: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    open_to_all: bool = False
    hidden: tuple[str, ...] = ()
    cdi: bool = False
    wsl: hostwsl.Wsl | None = None
    rdma: tuple[str, ...] = ()
    rdma_groups: tuple[str, ...] = ()
    locked_memory: int = -1
    selinux: bool = False
    selinux_devices: bool = False
    foreign: tuple[Path, ...] = ()
    token: Path | None = None
    interactive: bool = False


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the command line asks for. `shm`: bytes of /dev/shm, 0 for the host's own; `gpus`: numbers, none for all;
    `env`: variables for the container, whatever else says of them."""

    rdma: bool = False
    shm: int = SHM_BYTES
    gpus: tuple[int, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


NOTHING = RecipeFacts()
USUAL = Wishes()


@dataclass(frozen=True, slots=True)
class Launch:
    """A container to run. `folders` are to be made first, as the caller; `notes` are sentences for the caller."""

    request: RunRequest
    folders: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def plan(
    image: str,
    command: Sequence[str],
    host: Host,
    engine: EngineInfo,
    recipe: RecipeFacts = NOTHING,
    wishes: Wishes = USUAL,
    key: str = "",
    port: int = 0,
) -> Launch:
    """A run of `command` in the current folder, which is mounted at its own path and stays the caller's.

    `key`: of the image, for the run's records. `port`: one to publish on this machine alone. Raises
    InputError where this host cannot run it.
    """
    rootless_podman = engine.kind == "podman" and engine.rootless
    devices, groups = host.devices, host.groups
    if devices and host.cdi and not host.hidden and _new_enough(engine):
        devices = (hostcdi.ALL,)
    rdma = _rdma(host, engine) if wishes.rdma else ()
    if rdma:
        devices, groups = (*devices, *rdma), tuple(sorted({*groups, *host.rdma_groups}))
    if rootless_podman and devices:
        groups = _kept_groups(host, engine)
    why = _unlabelled(host, recipe, bool(devices)) if host.selinux else ""
    relabel = host.selinux and not why
    env = dict(ENVIRONMENT)
    env |= hostwsl.ENVIRONMENT if host.wsl and devices else {}
    env |= {"STRIX_IMAGE_KEY": key} if key else {}
    env |= {name: host.env[name] for name in PASSED if name in host.env}
    env |= wishes.env
    env |= {"HF_TOKEN_PATH": TOKEN} if host.token else {}
    request = RunRequest(
        image=image,
        command=tuple(command),
        env=env,
        mounts=_mounts(host, recipe, relabel=relabel),
        devices=devices,
        group_add=groups,
        # rootless Docker's root is the caller: any other user id would own nothing
        user="" if engine.rootless else f"{host.uid}:{host.gid}",
        keep_id=rootless_podman,
        # RDMA's addresses belong to the interfaces of the host
        network="host" if rdma else None,
        shm_size=wishes.shm or None,
        ipc="" if wishes.shm else "host",
        memlock=-1 if rdma else None,
        publish=(port,) if port else (),
        workdir=str(host.workdir),
        interactive=host.interactive,
        unconfined=bool(why) if host.selinux else None,
        attended=True,
    )
    # what lies in the project `train` makes itself, or not, as in a dry run
    outside = (path for path in recipe.writes if not _within(path, host.workdir))
    folders = (host.models, host.hub, host.compiled, *outside)
    return Launch(request, folders, tuple(_notes(host, wishes, why)))


def _new_enough(engine: EngineInfo) -> bool:
    """Whether the engine takes names of CDI: Docker says so itself, and before 28.3 only where it was switched on."""
    numbers = tuple(int(word) for word in re.findall(r"\d+", engine.version)[:2])
    return numbers >= _CDI_SINCE[engine.kind] and (engine.cdi or engine.kind == "podman")


def _kept_groups(host: Host, engine: EngineInfo) -> tuple[str, ...]:
    """keep-groups, alone: numeric groups would be looked up in the wrong user namespace. Only crun knows it."""
    if engine.runtime in ("", "crun"):
        return ("keep-groups",)
    if host.open_to_all:
        return ()
    raise InputError(
        Problem(
            f"{engine.runtime}, the runtime of this rootless Podman, drops the groups that may use {host.devices[0]}",
            cure='install crun and set runtime = "crun" under [engine] in ~/.config/containers/containers.conf',
        )
    )


def _rdma(host: Host, engine: EngineInfo) -> tuple[str, ...]:
    if not host.rdma:
        raise InputError(Problem("this host has no /dev/infiniband", cure="load the adapter's driver and ib_uverbs"))
    if engine.rootless and host.locked_memory >= 0:
        mib = host.locked_memory >> 20
        message = f"RDMA locks memory, of which this user may lock {mib} MiB and a rootless engine not more"
        raise InputError(Problem(message, cure="set memlock to unlimited in /etc/security/limits.d and log in again"))
    return host.rdma


def _unlabelled(host: Host, recipe: RecipeFacts, devices: bool) -> str:
    """Why SELinux must leave the container alone, instead of the mounts being labelled for it; empty: it need not.

    A home or a folder of the system must keep its labels: sshd and others would be locked out. What is somebody
    else's is not the caller's to label.
    """
    if devices and not host.selinux_devices:
        return "its policy keeps the GPU from containers"
    mounted = (host.workdir, *recipe.reads, *recipe.writes, host.models, host.hub, host.compiled)
    kept = [path for path in mounted if path in host.foreign or not _may_be_labelled(path, host.home)]
    return f"{kept[0]} must keep its label" if kept else ""


def _may_be_labelled(path: Path, home: Path) -> bool:
    return not home.is_relative_to(path) and len(path.parts) > 2 and path.parts[1] not in _SYSTEM


def _mounts(host: Host, recipe: RecipeFacts, *, relabel: bool) -> tuple[Mount, ...]:
    """The project at its own path, what the recipe reads and writes elsewhere, and the caches."""
    mounts = [Mount(str(host.workdir), str(host.workdir), relabel=relabel)]
    writes = _outermost(path for path in recipe.writes if not _within(path, host.workdir))
    mounts += [Mount(str(path), str(path), relabel=relabel) for path in writes]
    known = (host.workdir, *writes)
    reads = _outermost(path for path in recipe.reads if not any(_within(path, folder) for folder in known))
    mounts += [Mount(str(path), str(path), read_only=True, relabel=relabel) for path in reads]
    mounts.append(Mount(str(host.models), MODELS, read_only=True, relabel=relabel))
    mounts += [Mount(str(host.hub), HUB, relabel=relabel), Mount(str(host.compiled), COMPILED, relabel=relabel)]
    if host.token:
        mounts.append(Mount(str(host.token), TOKEN, read_only=True, relabel=relabel))
    if host.wsl and host.devices:
        # libraries of the system, which are nobody's to label
        mounts += [Mount(source, inside, read_only=True) for source, inside in host.wsl.libraries]
    # an inner folder is mounted after the outer one, which would hide it
    return tuple(sorted(mounts, key=lambda mount: len(Path(mount.target).parts)))


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """Each path once, without those that lie in another one."""
    every = list(dict.fromkeys(paths))
    return [path for path in every if not any(path != other and _within(path, other) for other in every)]


def _within(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder)


def _notes(host: Host, wishes: Wishes, why_unconfined: str) -> list[str]:
    notes = []
    meant = {*wishes.env, *(hostwsl.ENVIRONMENT if host.wsl else ())}
    stale = sorted(name for name in host.env if _STALE.match(name) and name not in meant)
    if host.hidden:
        notes.append(f"the container does not get {', '.join(host.hidden)}; --gpu chooses")
    if host.wsl and host.devices and not host.wsl.bridge:
        notes.append("this WSL has no librocdxg, so the image's ROCm must have it; strix-finetune doctor says more")
    if stale:
        notes.append(
            f"{', '.join(stale)} of this shell {'is' if len(stale) == 1 else 'are'} not passed on; --env does it"
        )
    if why_unconfined:
        notes.append(f"SELinux does not separate this container (label=disable): {why_unconfined}")
    return notes
