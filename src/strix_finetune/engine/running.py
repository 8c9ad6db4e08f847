"""One container from its creation to its removal, which happens whatever happens in between."""

from __future__ import annotations

import io
import os
import re
import struct
import tarfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strix_finetune.engine import tty
from strix_finetune.engine.base import EngineInfo, RunRequest, RunResult
from strix_finetune.engine.drivers import driver_labels
from strix_finetune.engine.signals import signal_name
from strix_finetune.errors import EngineError, InputError, Problem

if TYPE_CHECKING:
    from docker import APIClient

_GRACE = 10.0  # seconds for a killed container to end
_INIT_MISSING = re.compile(r"container-init|docker-init|init binary|catatonit")
_SHELL = ("/bin/sh", "-c", '"$@"; exit $?', "sh")  # the last word keeps the shell from replacing itself


class NoInit(Exception):
    """The engine has no init program to put before the command."""


def check(request: RunRequest) -> None:
    """Refuse what would only fail half-way: a missing mount source, keep-groups beside other groups."""
    for mount in request.mounts:
        if not Path(mount.source).is_absolute():
            raise InputError(Problem(f"the mount source '{mount.source}' is not an absolute path"))
        if not Path(mount.source).exists():
            raise InputError(
                Problem(
                    f"'{mount.source}' does not exist and cannot be mounted at {mount.target}", cure="create it first"
                )
            )
    if "keep-groups" in request.group_add and len(request.group_add) > 1:
        raise InputError(Problem("keep-groups cannot be combined with other groups", cure="use it alone"))
    for group in request.group_add:
        if group != "keep-groups" and not group.isdigit():
            raise InputError(
                Problem(
                    f"group '{group}' would be looked up in the image, not on this host",
                    cure="give the host's numeric group id",
                )
            )


def host_config(request: RunRequest, info: EngineInfo, *, init: bool) -> dict[str, Any]:
    """HostConfig of POST /containers/create. Mounts, never Binds: those make missing sources into folders."""
    config: dict[str, Any] = {
        "AutoRemove": False,
        "Mounts": [
            {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}
            for mount in request.mounts
        ],
        "Devices": [
            {"PathOnHost": device, "PathInContainer": device, "CgroupPermissions": "rwm"} for device in request.devices
        ],
        "GroupAdd": list(request.group_add),
    }
    if request.network:
        config["NetworkMode"] = request.network
    if request.shm_size is not None:
        config["ShmSize"] = request.shm_size
    if request.keep_id and info.kind == "podman" and info.rootless:
        config["UsernsMode"] = "keep-id"
    if init:
        config["Init"] = True
    return config


def archive(files: Mapping[str, bytes]) -> bytes:
    """A tar of `files` (path inside → content), mode 0755, root's. No folder entries: an existing folder
    keeps its mode, a missing one is made by the engine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in sorted(files.items()):
            info = tarfile.TarInfo(path.lstrip("/"))
            info.size, info.mode, info.mtime = len(content), 0o755, int(time.time())
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


class FrameReader:
    """Takes the engine's multiplexed stream apart: 8 bytes of header (stream, size), then the payload."""

    def __init__(self, on_output: Callable[[bytes], None]) -> None:
        self._on_output = on_output
        self._header = b""
        self._left = 0

    def feed(self, data: bytes) -> None:
        while data:
            if self._left:
                part, data = data[: self._left], data[self._left :]
                self._left -= len(part)
                self._on_output(part)
                continue
            need = 8 - len(self._header)
            self._header, data = self._header + data[:need], data[need:]
            if len(self._header) == 8:
                self._left = struct.unpack(">xxxxL", self._header)[0]
                self._header = b""


def run(
    api: APIClient,
    request: RunRequest,
    on_output: Callable[[bytes], None],
    info: EngineInfo,
    *,
    init: bool,
) -> RunResult:
    """Create, fill, attach, start, follow, wait, remove. SDK exceptions pass through.

    The command is never process 1: the kernel keeps from process 1 the signals that it does not handle, so a
    crash by abort() would look like success. With `init` the engine's own init stands before it, else a shell.
    Raises NoInit when the engine has no such program.
    """
    from docker.errors import APIError

    terminal = request.interactive and os.isatty(0) and os.isatty(1)
    # The name is ours before the engine answers, so that an interrupted creation can be undone too.
    name = f"strix-finetune-{uuid.uuid4().hex}"
    try:
        _create(api, request, name, host_config(request, info, init=init), terminal)
        if request.files:
            api.put_archive(name, "/", archive(request.files))
        return _follow(api, name, request, on_output, terminal)
    except APIError as error:
        if init and _INIT_MISSING.search(str(error.explanation)):
            raise NoInit from error
        raise
    finally:
        _remove(api, name)


def _create(api: APIClient, request: RunRequest, name: str, host: dict[str, Any], terminal: bool) -> None:
    body: dict[str, Any] = {
        "Image": request.image,
        "Cmd": list(request.command) if host.get("Init") or not request.command else [*_SHELL, *request.command],
        "Env": [f"{key}={value}" for key, value in request.env.items()],
        "Labels": {**request.labels, **driver_labels()},
        "AttachStdout": True,
        "AttachStderr": True,
        "AttachStdin": request.interactive,
        "OpenStdin": request.interactive,
        "StdinOnce": request.interactive,
        "Tty": terminal,
        "HostConfig": host,
    }
    if request.user:
        body["User"] = request.user
    if request.workdir:
        body["WorkingDir"] = request.workdir
    api.create_container_from_config(body, name)  # type: ignore[no-untyped-call]


def _follow(
    api: APIClient, name: str, request: RunRequest, on_output: Callable[[bytes], None], terminal: bool
) -> RunResult:
    deadline = time.monotonic() + request.timeout if request.timeout is not None else None
    attach = {"stdout": 1, "stderr": 1, "stream": 1, "stdin": int(request.interactive)}
    with tty.attached(api, name, attach) as link:
        api.start(name)
        reader = on_output if terminal else FrameReader(on_output).feed
        if request.interactive:
            in_time = tty.converse(api, name, link, reader, deadline, terminal)
        else:
            in_time = link.drain(reader, deadline)
        exit_code = _wait(api, name, deadline) if in_time else None
        timed_out = exit_code is None
        if exit_code is None:
            _kill(api, name)
            link.drain(reader, time.monotonic() + _GRACE)
            exit_code = _wait(api, name, time.monotonic() + _GRACE)
    if exit_code is None:
        raise EngineError(Problem(f"the container {name} was killed and does not end", cure="check the engine's log"))
    state = api.inspect_container(name)["State"]
    return RunResult(
        exit_code=exit_code,
        signal=signal_name(exit_code),
        timed_out=timed_out,
        out_of_memory=bool(state.get("OOMKilled")),
    )


def _wait(api: APIClient, name: str, deadline: float | None) -> int | None:
    """The exit code, or None when the deadline came first (a container can close its output and live on)."""
    import requests

    left = None if deadline is None else max(0.1, deadline - time.monotonic())
    try:
        return int(api.wait(name, timeout=left)["StatusCode"])  # type: ignore[arg-type]  # floats work too
    except (requests.exceptions.ReadTimeout, requests.exceptions.ConnectionError) as error:
        if isinstance(error, requests.exceptions.ReadTimeout) or "timed out" in str(error):
            return None
        raise


def _kill(api: APIClient, name: str) -> None:
    from docker.errors import APIError

    try:
        api.kill(name)
    except APIError as error:
        # It ended by itself in this very moment.
        if error.status_code not in (404, 409, 500):
            raise


def _remove(api: APIClient, name: str) -> None:
    from docker.errors import APIError

    try:
        api.remove_container(name, force=True, v=True)
    except APIError as error:
        if error.status_code not in (404, 409):
            raise EngineError(Problem(f"could not remove the container {name}: {error.explanation}")) from error
