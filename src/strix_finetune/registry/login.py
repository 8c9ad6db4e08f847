"""Who we are at a registry, from the files in which `podman login` and `docker login` keep it. Nothing is asked.

The formats: containers-auth.json(5), and the docker CLI's config.json with its credential helpers.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strix_finetune.registry.repository import Repository

_DOCKER_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")
# docker's own word for a token in the place of a password
_TOKEN_USER = "<token>"
# seconds: a helper may ask a person to unlock a keyring
_PATIENCE = 60


@dataclass(frozen=True, slots=True)
class Login:
    """User and password; or `token`, an identity token, which is changed for access tokens."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


def find(repository: Repository, env: Mapping[str, str]) -> Login | None:
    """The login of a repository: the first file that has one wins, in it the entry that names most of the path."""
    for path in files(env):
        config = _read(path)
        found = _from(config, repository, env) if config else None
        if found:
            return found
    return None


def files(env: Mapping[str, str]) -> list[Path]:
    """Where logins are looked for, first to last: as Podman does, then Docker's."""
    home = Path(env.get("HOME") or "~").expanduser()
    if env.get("REGISTRY_AUTH_FILE"):
        return [Path(env["REGISTRY_AUTH_FILE"])]
    runtime = env.get("XDG_RUNTIME_DIR", "")
    config = env.get("XDG_CONFIG_HOME", "")
    docker = env.get("DOCKER_CONFIG", "")
    return [
        *([Path(runtime) / "containers/auth.json"] if runtime else []),
        Path(f"/run/containers/{os.geteuid()}/auth.json"),
        (Path(config) if config else home / ".config") / "containers/auth.json",
        (Path(docker) if docker else home / ".docker") / "config.json",
    ]


def _read(path: Path) -> dict[str, Any]:
    """A file of logins; empty where there is none that can be read: then we are nobody there."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _names(repository: Repository) -> Iterator[str]:
    """What an entry may be called, the most exact first: HOST/a/b, HOST/a, HOST."""
    parts = repository.path.split("/")
    for length in range(len(parts), -1, -1):
        yield "/".join((repository.host, *parts[:length]))
    if repository.host in _DOCKER_HUB:
        yield from _DOCKER_HUB


def _from(config: Mapping[str, Any], repository: Repository, env: Mapping[str, str]) -> Login | None:
    auths, helpers = config.get("auths"), config.get("credHelpers")
    entries = {_plain(name): entry for name, entry in auths.items()} if isinstance(auths, dict) else {}
    named = helpers if isinstance(helpers, dict) else {}
    for name in _names(repository):
        helper = named.get(name)
        if isinstance(helper, str) and (found := _ask(helper, name, env)):
            return found
        entry = entries.get(name)
        if isinstance(entry, dict) and (found := _entry(entry)):
            return found
    store = config.get("credsStore")
    if isinstance(store, str) and store:
        hub = repository.host in _DOCKER_HUB
        return _ask(store, "https://index.docker.io/v1/" if hub else repository.host, env)
    return None


def _plain(name: str) -> str:
    """`https://index.docker.io/v1/` → `index.docker.io`: old entries are whole addresses."""
    bare = name.removeprefix("https://").removeprefix("http://").rstrip("/")
    return bare.removesuffix("/v1").removesuffix("/v2")


def _entry(entry: Mapping[str, Any]) -> Login | None:
    token = entry.get("identitytoken")
    if isinstance(token, str) and token:
        return Login(token=token)
    user, password = entry.get("username"), entry.get("password")
    if isinstance(entry.get("auth"), str):
        try:
            text = base64.b64decode(entry["auth"], validate=False).decode()
        except ValueError:
            return None
        user, _, password = text.partition(":")
    if isinstance(user, str) and user and isinstance(password, str):
        return Login(user, password.rstrip("\0"))
    return None


def _ask(helper: str, server: str, env: Mapping[str, str]) -> Login | None:
    """What a credential helper says; a helper that is missing or fails knows nothing."""
    program = shutil.which(f"docker-credential-{helper}", path=env.get("PATH", os.defpath))
    if program is None or "/" in helper:
        return None
    try:
        done = subprocess.run(
            [program, "get"], input=server.encode(), env=dict(env), capture_output=True, check=True, timeout=_PATIENCE
        )
        found = json.loads(done.stdout)
        user, secret = str(found.get("Username") or ""), str(found.get("Secret") or "")
    except (subprocess.SubprocessError, OSError, ValueError, AttributeError):
        return None
    if not secret:
        return None
    return Login(token=secret) if user == _TOKEN_USER else Login(user, secret)
