"""What the launcher has to know of this host, read from its files; and the hub's token, which travels as a file."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from strix_finetune import hostcdi, hostgpu, leftovers
from strix_finetune.errors import InputError, Problem
from strix_finetune.launch import Host
from strix_finetune.paths import Folders

_SELINUX = "sys/fs/selinux"


def read(env: Mapping[str, str], folders: Folders, *, gpu: bool, interactive: bool, root: Path = Path("/")) -> Host:
    """Look at this host. `gpu`: the image is for one. Nothing is opened, no program is run."""
    devices = hostgpu.devices(root) if gpu else ()
    rdma = tuple(sorted(str(path) for path in (root / "dev/infiniband").glob("*") if path.is_char_device()))
    most = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    home = Path(env.get("HOME") or "/")
    return Host(
        uid=os.getuid(),
        gid=os.getgid(),
        home=home,
        workdir=_workdir(),
        models=Path(env["STRIX_MODELS"]).absolute() if env.get("STRIX_MODELS") else folders.cache / "models",
        hub=Path(env.get("HF_HOME") or home / ".cache/huggingface").absolute(),
        compiled=folders.cache / "compiled",
        env=env,
        devices=devices,
        groups=hostgpu.groups(devices),
        open_to_all=hostgpu.open_to_all(devices),
        cdi=bool(devices) and hostcdi.usable(root),
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
    secret = (env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN") or "").strip()
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
