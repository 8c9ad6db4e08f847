"""Asking a registry itself which manifest stands behind a name."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from strix_finetune.errors import EngineError, Problem

if TYPE_CHECKING:
    import requests

_ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT = 30.0
_MAX_MANIFEST = 4 * 1024 * 1024


def split_host(repository: str) -> tuple[str, str]:
    """Registry host (with port) and path of a fully qualified repository."""
    host, _, path = repository.partition("/")
    return host, path


def is_loopback(repository: str) -> bool:
    """Whether a repository lies on this machine, where engines speak plain HTTP."""
    host = split_host(repository)[0]
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def credentials(repository: str, env: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """User and password from Podman's login file or Docker's, None where there is no login."""
    from docker import auth

    host = split_host(repository)[0]
    files: list[str | None] = [
        env.get("REGISTRY_AUTH_FILE"),
        f"{env['XDG_RUNTIME_DIR']}/containers/auth.json" if env.get("XDG_RUNTIME_DIR") else None,
        f"/run/containers/{os.geteuid()}/auth.json",
    ]
    for name in [*(file for file in files if file and _readable(file)), None]:
        config = auth.load_config(name)
        found = auth.resolve_authconfig(config, host)
        if found and found.get("username"):
            return str(found["username"]), str(found.get("password") or "")
    return None


def _readable(path: str) -> bool:
    try:
        return Path(path).is_file() and os.access(path, os.R_OK)
    except OSError:  # a folder of another user's
        return False


def manifest_digest(repository: str, tag: str, login: tuple[str, str] | None = None) -> str:
    """The digest that the registry serves for a tag. Raises EngineError with one sentence."""
    import requests

    host, path = split_host(repository)
    host = "registry-1.docker.io" if host == "docker.io" else host
    scheme = "http" if is_loopback(repository) else "https"
    address = f"{scheme}://{host}/v2/{path}/manifests/{tag}"
    try:
        with requests.Session() as session:
            answer = _ask(session, address, login)
            if answer.status_code == 200:
                return answer.headers.get("Docker-Content-Digest") or _digest_of(session, answer)
            reason = f"status {answer.status_code}"
    except (requests.RequestException, ValueError) as error:
        reason = type(error).__name__
    raise EngineError(
        Problem(f"the registry at {host} could not be asked for {repository}:{tag}: {reason}", cure="push again")
    )


def _ask(session: requests.Session, address: str, login: tuple[str, str] | None) -> requests.Response:
    headers = {"Accept": _ACCEPT}
    answer = session.head(address, headers=headers, auth=login, timeout=_TIMEOUT, allow_redirects=True)
    challenge = answer.headers.get("WWW-Authenticate", "")
    if answer.status_code != 401 or not challenge.lower().startswith("bearer "):
        return answer
    parts = dict(_CHALLENGE.findall(challenge))
    query = {name: parts[name] for name in ("service", "scope") if name in parts}
    granted = session.get(parts.get("realm", ""), params=query, auth=login, timeout=_TIMEOUT)
    granted.raise_for_status()
    token = json.loads(granted.content)
    headers["Authorization"] = f"Bearer {token.get('token') or token.get('access_token')}"
    return session.head(address, headers=headers, timeout=_TIMEOUT, allow_redirects=True)


def _digest_of(session: requests.Session, answer: requests.Response) -> str:
    """A registry without the digest header: the digest is the manifest's own sha256."""
    headers = {name: value for name, value in answer.request.headers.items() if name in ("Accept", "Authorization")}
    body = session.get(str(answer.url), headers=headers, timeout=_TIMEOUT, stream=True).raw.read(_MAX_MANIFEST)
    return f"sha256:{sha256(body).hexdigest()}"
