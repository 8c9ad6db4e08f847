"""What only the machine itself can tell, asked of the real root alone: at most a few seconds, side by side."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from strix_finetune.engine.base import EngineInfo
from strix_finetune.engine.select import Wanted, connect
from strix_finetune.errors import Problem, StrixError

if TYPE_CHECKING:
    from strix_finetune.netconf import NetSettings

T = TypeVar("T")
Address = tuple[str, str, str]

# seconds for one address, and for the engine
_PATIENCE = 4.0
_ENGINE_PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class EngineState:
    """The engine that the other commands would use, or in `problem` why there is none.

    `data_root`: the folder of its images, empty where it is not on this machine. `runtime`: its OCI runtime. `system`:
    what it says it runs on.
    """

    info: EngineInfo | None
    problem: Problem | None = None
    data_root: str = ""
    runtime: str = ""
    storage: str = ""
    system: str = ""


@dataclass(frozen=True, slots=True)
class Space:
    """A file system: bytes and inodes, free for this user and in all. Some count no inodes: both are 0."""

    free: int
    total: int
    inodes_free: int
    inodes: int


@dataclass(frozen=True, slots=True)
class ToolboxImage:
    """The image that a toolbox would be made of, and its configuration as Podman tells it; None without the image."""

    ref: str
    config: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Reached:
    """An address that the work needs. `problem` is empty when it answered; `needed_for` is what fails without it."""

    name: str
    place: str
    needed_for: str
    problem: str = ""


class Edges(Protocol):
    def engine(self) -> EngineState: ...

    def open(self, path: str) -> str:
        """Open a device for reading and writing; empty when that works, else the reason ("permission denied")."""

    def space(self, path: str) -> Space | None: ...

    def budget(self) -> int:
        """Bytes that the images of the wanted target may take, by their definitions; 0 where that is not known."""

    def toolbox_image(self) -> ToolboxImage | None:
        """The image for Toolbx; None where that is not installed, or Podman does not answer."""

    def reach(self) -> tuple[Reached, ...] | None:
        """Every address that the host's configuration names; None where nobody may be asked.

        Raises StrixError where that configuration cannot be right.
        """


class Live:
    """This machine. Slow questions are asked at once and in threads, and waited for when their answer is wanted."""

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        wanted: Wanted = "auto",
        budget: Callable[[], int] = lambda: 0,
        addresses: Callable[[], Sequence[Address]] | None = None,
        ask: Callable[[str], str] = lambda url: "",
        toolbox: Callable[[], str] = lambda: "",
    ) -> None:
        """`addresses`: (name, URL, what needs it), or None to ask nobody; `ask`: what is wrong with one URL; `toolbox`:
        the name of the image for Toolbx, empty where it is not known."""
        self._engine = _begin(lambda: _engine(wanted, env))
        self._reach = None if addresses is None else _begin(lambda: _ask_all(addresses(), ask))
        self._budget = budget
        there = which("toolbox", path=env.get("PATH", os.defpath))
        self._toolbox = _begin(lambda: _toolbox_image(toolbox(), env)) if there else None

    def engine(self) -> EngineState:
        try:
            return self._engine.result(_ENGINE_PATIENCE)
        except TimeoutError:
            return EngineState(None, Problem("the container engine does not answer", cure="restart it"))

    def open(self, path: str) -> str:
        return open_device(path)

    def space(self, path: str) -> Space | None:
        return space_of(Path(path))

    def budget(self) -> int:
        return self._budget()

    def toolbox_image(self) -> ToolboxImage | None:
        try:
            return self._toolbox.result(_ENGINE_PATIENCE) if self._toolbox else None
        except TimeoutError:
            return None

    def reach(self) -> tuple[Reached, ...] | None:
        return None if self._reach is None else self._reach.result()


def _begin(work: Callable[[], T]) -> Future[T]:
    """Do it in a thread that nobody waits for at the end of the process."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 (it is raised where the result is asked for)
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


def _ask_all(addresses: Sequence[Address], ask: Callable[[str], str]) -> tuple[Reached, ...]:
    from strix_finetune.web import place

    asked = [(entry, _begin(lambda url=entry[1]: ask(url))) for entry in addresses]  # type: ignore[misc]
    return tuple(Reached(name, place(url), needed, answer.result()) for (name, url, needed), answer in asked)


def open_device(path: str) -> str:
    """Open a device file as ROCm does, and close it again."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            return "permission denied"
        return (error.strerror or str(error)).lower()
    return ""


def space_of(path: Path) -> Space | None:
    """The file system that `path` is on, or would be on once it exists."""
    for folder in (path, *path.parents):
        try:
            state = os.statvfs(folder)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        return Space(state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize, state.f_favail, state.f_files)
    return None


def ask(url: str, settings: NetSettings) -> str:
    """What is wrong with an address, in words; empty when its server answers, whatever it says."""
    import ssl
    import urllib.error
    import urllib.request

    from strix_finetune import web

    try:
        with web.opener(settings).open(urllib.request.Request(url, method="HEAD"), timeout=_PATIENCE):
            return ""
    except urllib.error.HTTPError as error:
        if error.code == 407:
            return "the proxy asks for a password"
        return f"its server answers with status {error.code}" if error.code >= 500 else ""
    except web.UnsafeRedirect:
        return "it redirects to an address that is not encrypted"
    except urllib.error.URLError as error:
        cause = error.reason
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "its certificate is not trusted here"
        return _words(cause)
    except (OSError, ValueError) as error:
        return _words(error)


def _words(error: object) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:200].rstrip(".").lower()


def _toolbox_image(ref: str, env: Mapping[str, str]) -> ToolboxImage | None:
    if not ref:
        return None
    try:
        podman = connect("podman", env)
        try:
            told = podman.configuration(ref)
        finally:
            podman.close()
    except StrixError:
        return None
    return ToolboxImage(ref, told["config"] if told else None)


def _engine(wanted: Wanted, env: Mapping[str, str]) -> EngineState:
    try:
        engine = connect(wanted, env)
    except StrixError as error:
        return EngineState(None, error.problems[0])
    try:
        facts: dict[str, Any] = dict(engine.api.info())  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 (whatever the SDK raises: what the engine says of itself is a bonus)
        facts = {}
    finally:
        info = engine.info
        engine.close()
    local = info.url.startswith("unix://")
    return EngineState(
        info,
        data_root=str(facts.get("DockerRootDir") or "") if local else "",
        runtime=str(facts.get("DefaultRuntime") or ""),
        storage=str(facts.get("Driver") or ""),
        system=str(facts.get("OperatingSystem") or ""),
    )
