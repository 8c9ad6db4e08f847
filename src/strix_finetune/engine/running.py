"""One container from its creation to its removal, which happens whatever happens in between."""

from __future__ import annotations

import io
import os
import re
import struct
import tarfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from strix_finetune.engine import keeper, tty, wire
from strix_finetune.engine.base import EngineInfo, RunRequest, RunResult
from strix_finetune.engine.drivers import driver_labels
from strix_finetune.engine.specs import docker_spec, podman_spec
from strix_finetune.errors import EngineError, Problem
from strix_finetune.signals import signal_name

if TYPE_CHECKING:
    from docker import APIClient

    from strix_finetune.engine.ongoing import Ongoing

_GRACE = 10.0  # seconds for a killed container to end
_STDERR = 2
_INIT_MISSING = re.compile(r"container-init|docker-init|init binary|catatonit")


class NoInit(Exception):
    """The engine has no init program to put before the command."""


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
    """Takes the engine's multiplexed stream apart: 8 bytes of header (stream, size), then the payload.

    Both streams go to `on_output`, unless standard error has an `on_error` of its own.
    """

    def __init__(self, on_output: Callable[[bytes], None], on_error: Callable[[bytes], None] | None = None) -> None:
        self._to = (on_output, on_error or on_output)
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
                stream, self._left = struct.unpack(">BxxxL", self._header)
                self._on_output = self._to[stream == _STDERR]
                self._header = b""


def run(
    api: APIClient,
    request: RunRequest,
    on_output: Callable[[bytes], None],
    info: EngineInfo,
    ongoing: Ongoing,
    *,
    init: bool,
) -> RunResult:
    """Create, fill, attach, start, follow, wait, remove. SDK exceptions pass through.

    Another thread may end it through `ongoing`, in whatever step it is.

    The command is never process 1: the kernel keeps from process 1 the signals that it does not handle, so a
    crash by abort() would look like success. With `init` the engine's own init stands before it, else a shell.
    Raises NoInit when the engine has no such program.
    """
    from docker.errors import APIError

    terminal = request.interactive and os.isatty(0) and os.isatty(1)
    # The name is ours before the engine answers, so that an interrupted creation can be undone too.
    name = f"strix-finetune-{uuid.uuid4().hex}"
    with ongoing.container(name):
        try:
            create(api, request, name, info, f"run {request.image}", init=init, terminal=terminal)
            if request.files:
                api.put_archive(name, "/", archive(request.files))
            if not request.attended:
                return _follow(api, name, request, on_output, terminal, ongoing)
            with keeper.kept(name, info), tty.signals(api, name):
                return _follow(api, name, request, on_output, terminal, ongoing)
        except (APIError, EngineError) as error:
            if init and _INIT_MISSING.search(str(getattr(error, "explanation", error))):
                raise NoInit from error
            raise
        finally:
            remove(api, name, info)


def create(
    api: APIClient,
    request: RunRequest,
    name: str,
    info: EngineInfo,
    doing: str,
    *,
    init: bool | None,
    terminal: bool = False,
    labels: Mapping[str, str] | None = None,
    limits: Sequence[Mapping[str, Any]] | None = None,
    passing: bool = False,
) -> None:
    """Create a container that is this process's. `doing`: for the sentence where it fails; `init`: see command_of.

    `labels`: besides those of the request. `limits`: of another machine, where the engine is not on this one: what
    Podman is told instead of our own. `passing`: the engine removes it when it ends.
    """
    given = {**request.labels, **(labels or {}), **driver_labels()}
    if info.kind == "podman":
        spec = podman_spec(request, info, given, init=init, terminal=terminal)
        if limits is not None:
            spec["r_limits"] = list(limits)
        if passing:
            spec["remove"] = True
        wire.call(api, "POST", "/libpod/containers/create", doing, body={"name": name, **spec})
        return
    spec = docker_spec(request, info, given, init=init, terminal=terminal)
    spec["HostConfig"]["AutoRemove"] = passing
    api.create_container_from_config(spec, name)  # type: ignore[no-untyped-call]


def _follow(
    api: APIClient,
    name: str,
    request: RunRequest,
    on_output: Callable[[bytes], None],
    terminal: bool,
    ongoing: Ongoing,
) -> RunResult:
    deadline = time.monotonic() + request.timeout if request.timeout is not None else None
    attach = {"stdout": 1, "stderr": 1, "stream": 1, "stdin": int(request.interactive)}
    with tty.attached(api, name, attach) as link:
        ongoing.check()
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


def remove(api: APIClient, name: str, info: EngineInfo) -> None:
    """Remove a container, running or not; a missing one is no error."""
    from docker.errors import APIError

    try:
        if info.kind == "podman":
            # it would ask the container to end, and wait ten seconds for it
            path, params = f"/libpod/containers/{name}", {"force": "true", "timeout": "0", "v": "true"}
            with suppress(EngineError):
                wire.call(api, "DELETE", path, f"remove the container {name}", params=params)
                return
        api.remove_container(name, force=True, v=True)
    except APIError as error:
        if error.status_code not in (404, 409):
            raise EngineError(Problem(f"could not remove the container {name}: {error.explanation}")) from error
