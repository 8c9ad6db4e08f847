"""What the launcher has to know of this host, read from its files; and the hub's token, which travels as a file."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from strix_finetune import hostcdi, hostgpu, hostwsl, leftovers
from strix_finetune.caches import CACHES
from strix_finetune.errors import InputError, Problem
from strix_finetune.launch import SECRETS, Host
from strix_finetune.paths import Folders
from strix_finetune.recipefacts import RecipeFacts

_SELINUX = "sys/fs/selinux"


def read(
    env: Mapping[str, str],
    *,
    target: str,
    interactive: bool,
    gpus: Sequence[int] = (),
    root: Path = Path("/"),
) -> Host:
    """Look at this host. `target`: of the image, empty when it is for no GPU; `gpus`: numbers of the wanted ones.

    Nothing is opened, no program is run. Raises InputError for what is not there.
    """
    wsl = hostwsl.find(root) if target else None
    there = hostgpu.gpus(root) if target else ()
    if gpus and wsl:
        raise InputError("Windows chooses the GPU that WSL lends", cure="leave --gpu out")
    if gpus and not target:
        raise InputError("the image of the target cpu uses no GPU", cure="leave --gpu out")
    chosen = hostgpu.choose(there, target, gpus)
    for number, gpu in zip(gpus, chosen, strict=False):
        if gpu.gfx != target:
            raise InputError(f"GPU {number} is {gpu.gfx}, and the image is for {target}", cure="leave --target out")
    devices = (_lent(wsl) if wsl else hostgpu.devices(root, chosen)) if target else ()
    rdma = tuple(sorted(str(path) for path in (root / "dev/infiniband").glob("*") if path.is_char_device()))
    most = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    home = Path(env.get("HOME") or "/")
    places = {cache.name: cache.place(env) for cache in CACHES}
    return Host(
        uid=os.getuid(),
        gid=os.getgid(),
        home=home,
        workdir=_workdir(),
        models=places["models"],
        hub=places["hub"],
        compiled=places["compiled"],
        env=env,
        devices=devices,
        groups=hostgpu.groups(devices),
        open_to_all=hostgpu.open_to_all(devices),
        hidden=_hidden(there, devices, root),
        cdi=bool(devices) and not wsl and hostcdi.usable(root),
        wsl=wsl,
        rdma=rdma,
        rdma_groups=hostgpu.groups(rdma),
        locked_memory=-1 if most == resource.RLIM_INFINITY else most,
        selinux=_first(root / _SELINUX / "enforce") == "1",
        # "now" and "after the next change", such as "1 1"
        selinux_devices=_first(root / _SELINUX / "booleans/container_use_devices").startswith("1"),
        token=_token_file(env),
        interactive=interactive,
    )


@contextmanager
def token(env: Mapping[str, str], folders: Folders) -> Iterator[Path | None]:
    """The hub's token of the environment as a file that only the caller can read; None where there is none.

    In a container's environment everybody would read it who may inspect containers. The file goes with the block;
    the one of a driver that was killed goes at the next start.
    """
    secret = next((env[name] for name in SECRETS if env.get(name)), "").strip()
    place = Path(env.get("XDG_RUNTIME_DIR") or folders.state)
    if not secret:
        yield None
        return
    place.mkdir(parents=True, exist_ok=True)
    leftovers.remove_leftovers(place)
    with leftovers.temporary(place, "strix-hf-token") as path:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secret)
        yield path


def foreign(host: Host, recipe: RecipeFacts) -> tuple[Path, ...]:
    """What would be mounted and is somebody else's. Root may change all that it can see."""
    if not host.uid:
        return ()
    paths = (host.workdir, *recipe.reads, *recipe.writes, host.models, host.hub, host.compiled)
    return tuple(path for path in paths if path.exists() and path.stat().st_uid != host.uid)


def _hidden(there: Sequence[hostgpu.Gpu], devices: Sequence[str], root: Path) -> tuple[str, ...]:
    """The GPUs whose render node is known and not among `devices`."""
    kept = [gpu for gpu in there if gpu.render and str(root / "dev/dri" / gpu.render) not in devices]
    return tuple(f"{gpu.gfx} ({gpu.render})" for gpu in kept) if devices else ()


def _lent(wsl: hostwsl.Wsl) -> tuple[str, ...]:
    """The device file of WSL; none where Windows lends no GPU, as on a host without one."""
    if wsl.device and not wsl.dxcore:
        raise InputError(f"this WSL has {hostwsl.DEVICE} and no {hostwsl.DXCORE}", cure="run wsl.exe --update")
    return (wsl.device,) if wsl.device else ()


def _token_file(env: Mapping[str, str]) -> Path | None:
    """The token's file where it is not the usual one, which lies in the hub's folder and is mounted with it."""
    named = env.get("HF_TOKEN_PATH", "")
    if not named:
        return None
    path = Path(named).expanduser().absolute()
    if not path.is_file():
        raise InputError(Problem(f"HF_TOKEN_PATH names {path}, which is not a file", cure="correct or unset it"))
    return path


def _workdir() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise InputError(Problem("the current folder is gone", cure="change to another one")) from None


def _first(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""
