"""The container that a run asks for, in each engine's own words.

Docker is asked through its API. Podman is asked through its own (libpod), not the Docker-compatible one: there
`keep-groups` would be looked up as the name of a group in the image, and a missing working folder be an error.
"""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import Any

from strix_finetune.engine.base import EngineInfo, RunRequest
from strix_finetune.errors import InputError, Problem

KEEP_GROUPS = "keep-groups"
# the one address that ports are published on: nobody but this machine reaches it
LOOPBACK = "127.0.0.1"
# vendor.com/class=name, which no path can be: https://github.com/cncf-tags/container-device-interface
_CDI = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*=[\w.:-]+$")
# there a container sees no file of the host unless the file is relabelled, which is not ours to do, and no device
_SELINUX = Path("/sys/fs/selinux/enforce")
# A shell as process 1, where the engine has no init program; what follows exit keeps it from replacing itself.
_SHELL = ("/bin/sh", "-c", '"$@"; exit $?', "sh")


def check(request: RunRequest, *, here: bool = True) -> None:
    """Refuse what would only fail half-way: a missing mount source or device, if that is to be `here`; named groups."""
    for mount in request.mounts:
        if not Path(mount.source).is_absolute():
            raise InputError(Problem(f"the mount source '{mount.source}' is not an absolute path"))
        if here and not Path(mount.source).exists():
            message = f"'{mount.source}' does not exist and cannot be mounted at {mount.target}"
            raise InputError(Problem(message, cure="create it first"))
    for device in request.devices:
        if here and not is_cdi(device) and not Path(device).exists():
            raise InputError(Problem(f"this host has no device {device}", cure="run `strix-finetune doctor`"))
    if request.ipc and request.shm_size is not None:
        # Docker would ignore the size, Podman refuse it
        raise InputError(Problem("a size of shared memory and an IPC namespace exclude each other", cure="give one"))
    if KEEP_GROUPS in request.group_add and len(request.group_add) > 1:
        raise InputError(Problem("keep-groups cannot be combined with other groups", cure="use it alone"))
    for group in request.group_add:
        if group != KEEP_GROUPS and not group.isdigit():
            message = f"group '{group}' would be looked up in the image, not on this host"
            raise InputError(Problem(message, cure="give the host's numeric group id"))


def is_cdi(device: str) -> bool:
    """Whether a device is a name of CDI and not a file."""
    return bool(_CDI.match(device))


def unconfined(request: RunRequest) -> bool:
    """Whether SELinux must leave the container alone, so that it can use what it was given of the host."""
    if request.unconfined is not None:
        return request.unconfined
    return bool(request.mounts or request.devices) and _SELINUX.exists()


def command_of(request: RunRequest, *, init: bool | None) -> list[str]:
    """The command, which is not process 1: the kernel keeps from process 1 the signals that it does not handle.

    `init`: whether the engine's own stands before it, else a shell does; None: it handles signals, as process 1 too.
    """
    return [*_SHELL, *request.command] if init is False and request.command else list(request.command)


def docker_spec(
    request: RunRequest, info: EngineInfo, labels: dict[str, str], *, init: bool | None, terminal: bool
) -> dict[str, Any]:
    """The body of Docker's POST /containers/create.

    Mounts rather than Binds, which make missing sources into folders; but only those can be labelled for SELinux.
    """
    for mount in request.mounts:
        if mount.relabel and ":" in mount.source + mount.target:
            message = f"'{mount.source}' holds a ':', and Docker cannot label such a folder for SELinux"
            raise InputError(Problem(message, cure="rename it"))
    if KEEP_GROUPS in request.group_add:
        raise InputError(Problem("keep-groups is known to Podman only", cure="give Docker numeric group ids"))
    host: dict[str, Any] = {
        "AutoRemove": False,
        "Mounts": [
            {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}
            for mount in request.mounts
            if not mount.relabel
        ],
        "Devices": [
            {"PathOnHost": device, "PathInContainer": device, "CgroupPermissions": "rwm"}
            for device in request.devices
            if not is_cdi(device)
        ],
        "GroupAdd": list(request.group_add),
        "Init": bool(init),
    }
    if labelled := [mount for mount in request.mounts if mount.relabel]:
        host["Binds"] = [f"{mount.source}:{mount.target}:{'ro' if mount.read_only else 'rw'},z" for mount in labelled]
    if request.network:
        host["NetworkMode"] = request.network
    if request.shm_size is not None:
        host["ShmSize"] = request.shm_size
    if request.ipc:
        host["IpcMode"] = request.ipc
    if request.memlock is not None:
        host["Ulimits"] = [{"Name": "memlock", "Soft": request.memlock, "Hard": request.memlock}]
    if request.publish:
        host["PortBindings"] = {
            f"{port}/tcp": [{"HostIp": LOOPBACK, "HostPort": str(port)}] for port in request.publish
        }
    if named := [device for device in request.devices if is_cdi(device)]:
        host["DeviceRequests"] = [{"Driver": "cdi", "DeviceIDs": named}]
    if unconfined(request):
        host["SecurityOpt"] = ["label=disable"]
    return {
        "Image": request.image,
        "Cmd": command_of(request, init=init),
        "Env": [f"{key}={value}" for key, value in request.env.items()],
        "Labels": labels,
        "AttachStdout": True,
        "AttachStderr": True,
        "AttachStdin": request.interactive,
        "OpenStdin": request.interactive,
        "StdinOnce": request.interactive,
        "Tty": terminal,
        "HostConfig": host,
        **({"User": request.user} if request.user else {}),
        **({"WorkingDir": request.workdir} if request.workdir else {}),
        **({"ExposedPorts": {f"{port}/tcp": {} for port in request.publish}} if request.publish else {}),
    }


def podman_spec(
    request: RunRequest, info: EngineInfo, labels: dict[str, str], *, init: bool | None, terminal: bool
) -> dict[str, Any]:
    """The body of Podman's POST /libpod/containers/create."""
    keep_groups = KEEP_GROUPS in request.group_add
    spec: dict[str, Any] = {
        "image": request.image,
        "command": command_of(request, init=init),
        "env": dict(request.env),
        "labels": labels,
        "mounts": [
            {
                "type": "bind",
                "source": mount.source,
                "destination": mount.target,
                "options": ["rbind", "ro" if mount.read_only else "rw", *(["z"] if mount.relabel else [])],
            }
            for mount in request.mounts
        ],
        "devices": [{"path": device} for device in request.devices],
        "groups": [] if keep_groups else list(request.group_add),
        "stdin": request.interactive,
        "terminal": terminal,
        "init": bool(init),
        "create_working_dir": True,
    }
    if keep_groups:
        spec["annotations"] = {"run.oci.keep_original_groups": "1"}
    if request.keep_id and info.rootless:
        spec["userns"] = {"nsmode": "keep-id"}
    if request.network:
        spec["netns"] = {"nsmode": request.network}
    if request.shm_size is not None:
        spec["shm_size"] = request.shm_size
    if request.ipc:
        spec["ipcns"] = {"nsmode": request.ipc}
    if request.memlock is not None:
        # who sets one limit gets the most of two others from Podman, also where that is not allowed; what we may have
        # ourselves is, and of processes Podman takes for itself no more than there are by default
        limits = {"memlock": request.memlock if request.memlock >= 0 else 2**64 - 1}
        for name, which, most in (
            ("nofile", resource.RLIMIT_NOFILE, 1 << 20),
            ("nproc", resource.RLIMIT_NPROC, 1 << 15),
        ):
            own = resource.getrlimit(which)[1]
            limits[name] = min(own, most) if own >= 0 else most
        # by short names: Podman puts RLIMIT_ before them
        spec["r_limits"] = [{"type": name, "soft": limit, "hard": limit} for name, limit in limits.items()]
    if request.publish:
        spec["portmappings"] = [
            {"host_ip": LOOPBACK, "host_port": port, "container_port": port, "protocol": "tcp"}
            for port in request.publish
        ]
    if unconfined(request):
        spec["selinux_opts"] = ["disable"]
    if request.user:
        spec["user"] = request.user
    if request.workdir:
        spec["work_dir"] = request.workdir
    return spec
