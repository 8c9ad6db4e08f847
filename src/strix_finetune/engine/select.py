"""Which engine to use, and the connection to it.

The kind is what the API says of itself, never the name of a command or a socket: `docker` is often
Podman's, and DOCKER_HOST may point at either.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from strix_finetune.engine.base import Engine, EngineInfo, EngineKind
from strix_finetune.engine.failures import START_CURE, is_transport, needs_paramiko, unreachable, wrong_url
from strix_finetune.errors import EngineError, EngineUnavailable, Problem

if TYPE_CHECKING:
    from docker import APIClient

Wanted = Literal["docker", "podman", "auto"]

DOCKER_SOCKET = "/var/run/docker.sock"
PODMAN_SOCKET = "/run/podman/podman.sock"


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine may be. `source` is the setting that says so, empty for a usual place."""

    url: str
    source: str = ""


def explicit_address(wanted: Wanted, env: Mapping[str, str]) -> Address | None:
    """The address that the user set. DOCKER_HOST first, except where Podman was asked for."""
    names = {
        "docker": ["DOCKER_HOST"],
        "podman": ["CONTAINER_HOST", "DOCKER_HOST"],
        "auto": ["DOCKER_HOST", "CONTAINER_HOST"],
    }[wanted]
    for name in names:
        if env.get(name):
            return Address(env[name], name)
    return _context_address(env) if wanted != "podman" else None


def usual_addresses(wanted: Wanted, env: Mapping[str, str], *, root: bool) -> list[Address]:
    """The places where engines listen by default, best first; only those that exist."""
    runtime = env.get("XDG_RUNTIME_DIR", "")
    docker = [DOCKER_SOCKET]
    podman = [PODMAN_SOCKET] if root else []
    if runtime:
        docker.append(f"{runtime}/docker.sock")
        podman.insert(0, f"{runtime}/podman/podman.sock")
    paths = {"docker": docker, "podman": podman, "auto": docker + podman}[wanted]
    return [Address(f"unix://{path}") for path in paths if os.path.lexists(path)]


def socket_path(env: Mapping[str, str]) -> str | None:
    """The path of Docker's socket when it is a local one that exists, without the SDK and without asking it."""
    address = explicit_address("docker", env)
    if address is not None:
        path = address.url.removeprefix("unix://")
        return path if address.url.startswith("unix://") and Path(path).exists() else None
    found = usual_addresses("docker", env, root=False)
    return found[0].url.removeprefix("unix://") if found else None


def connect(kind: Wanted, env: Mapping[str, str]) -> Engine:
    """Connect to the engine that `kind` and the environment ask for.

    An address that the user set is taken or refused, never passed over. Without one the usual sockets are
    tried in turn, and last a private Podman service, if there is a podman program.
    Raises EngineUnavailable with one sentence for the address that came nearest to being one.
    """
    explicit = explicit_address(kind, env)
    if explicit is not None:
        engine = open_at(explicit, env)
        if kind not in ("auto", engine.info.kind):
            engine.close()
            raise EngineUnavailable(
                Problem(
                    f"{explicit.source} points at {engine.info.kind}, but {kind} was asked for",
                    cure=f"use --engine {engine.info.kind}, or unset {explicit.source}",
                )
            )
        return engine
    refusals: list[EngineUnavailable] = []
    for address in usual_addresses(kind, env, root=os.geteuid() == 0):
        try:
            engine = open_at(address, env)
        except EngineUnavailable as error:
            refusals.append(error)
            continue
        if kind in ("auto", engine.info.kind):
            return engine
        engine.close()
    if kind != "docker":
        from strix_finetune.engine import podman_service

        if podman_service.available(env):
            service = podman_service.start(env)
            try:
                return open_at(Address(service.url), env, on_close=service.stop, explain=service.failure)
            except BaseException:
                service.stop()
                raise
    if refusals:
        raise refusals[0]
    raise _nothing(kind)


def _nothing(kind: Wanted) -> EngineUnavailable:
    if kind == "podman":
        return EngineUnavailable(Problem("Podman is not installed", cure="install it (Debian: apt install podman)"))
    named = "no container engine is running" if kind == "auto" else "Docker is not running"
    return EngineUnavailable(
        Problem(f"{named}: there is no socket at {DOCKER_SOCKET}", cure=f"{START_CURE}, or set DOCKER_HOST")
    )


def open_at(
    address: Address,
    env: Mapping[str, str],
    *,
    on_close: Callable[[], None] | None = None,
    explain: Callable[[], EngineError | None] | None = None,
    elsewhere: str = "",
) -> Engine:
    """Connect to one address and ask it what it is. Raises EngineUnavailable.

    `elsewhere`: the engine is another machine's, and this is what people know its address by.
    """
    from strix_finetune.engine.client import SdkEngine

    api: APIClient | None = None
    try:
        api = _client(address, env)
        version: dict[str, Any] = api.version()
        kind = _kind(version)
        facts: dict[str, Any] = dict(api.info())
        info = EngineInfo(
            kind,
            str(version.get("Version", "")),
            api.api_version,
            elsewhere or address.url,
            _rootless(facts),
            runtime=str(facts.get("DefaultRuntime") or ""),
            cdi=bool(facts.get("CDISpecDirs")),
        )
    except Exception as error:
        if api is not None:
            api.close()
        if not is_transport(error):
            raise
        reason = explain() if explain else None
        raise reason or _refusal(address, error) from error
    return SdkEngine(api, info, on_close=on_close, here=not elsewhere)


def _client(address: Address, env: Mapping[str, str]) -> APIClient:
    from docker import APIClient
    from docker.utils import kwargs_from_env

    # "unix://" alone would be taken for the default socket.
    if not address.url.startswith(("unix:///", "tcp://", "http://", "https://", "ssh://")):
        raise wrong_url(address.url, address.source)
    if address.url.startswith("ssh://") and not _has_paramiko():
        raise needs_paramiko(address.url, address.source)
    tls = {name: env[name] for name in ("DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH") if name in env}
    settings: dict[str, Any] = {"base_url": address.url}
    if tls and not address.url.startswith("unix://"):
        settings = dict(kwargs_from_env(environment={**tls, "DOCKER_HOST": address.url}))
    # Layers are built at the same time, each with its own connections.
    return APIClient(version="auto", timeout=60, use_ssh_client=True, max_pool_size=32, **settings)


def _has_paramiko() -> bool:
    from importlib.util import find_spec

    return find_spec("paramiko") is not None


def _refusal(address: Address, error: BaseException) -> EngineError:
    gone = unreachable(address.url, error, source=address.source)
    if gone is not None:
        return gone
    from strix_finetune.engine.failures import engine_words

    return wrong_url(address.url, address.source, engine_words(error))


def _kind(version: Mapping[str, Any]) -> EngineKind:
    names = [str(part.get("Name", "")) for part in version.get("Components") or () if isinstance(part, dict)]
    return "podman" if any("podman" in name.lower() for name in names) else "docker"


def _rootless(facts: Mapping[str, Any]) -> bool:
    # Docker says it among its security options, Podman in a field of its own.
    return bool(facts.get("Rootless")) or "name=rootless" in (facts.get("SecurityOptions") or ())


def _context_address(env: Mapping[str, str]) -> Address | None:
    """The endpoint of the docker CLI's current context, as Docker Desktop and rootless Docker set it."""
    folder = Path(env.get("DOCKER_CONFIG") or Path(env.get("HOME") or "/") / ".docker")
    name = env.get("DOCKER_CONTEXT") or ""
    try:
        name = name or str(json.loads((folder / "config.json").read_bytes()).get("currentContext") or "")
        if name in ("", "default"):
            return None
        meta = folder / "contexts" / "meta" / sha256(name.encode()).hexdigest() / "meta.json"
        host = json.loads(meta.read_bytes())["Endpoints"]["docker"]["Host"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Address(str(host), f"the docker context '{name}'") if host else None
