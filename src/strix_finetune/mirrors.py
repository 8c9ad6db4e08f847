"""A channel's own index somewhere else: what this host says of it, and what that makes of a locked address.

`STRIX_INDEX_AMD=https://mirror.example/amd`, or `--index amd=…`, is in no lock and no key: the sha256 decides whether
a file is the right one, wherever it lies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from strix_finetune.errors import InputError, nearest

if TYPE_CHECKING:
    from strix_finetune.lockmodel import WheelLock
    from strix_finetune.schema import Index

_PREFIX = "STRIX_INDEX_"


def variable(index: str) -> str:
    """The environment variable for an index: "amd-edge" → "STRIX_INDEX_AMD_EDGE"."""
    return _PREFIX + re.sub(r"[^A-Z0-9]", "_", index.upper())


def collect(env: Mapping[str, str], flags: Sequence[str]) -> dict[str, str]:
    """Variable → URL without a slash at its end. `flags` are words "NAME=URL"; they win over the environment.

    Raises InputError for a URL that may not be asked.
    """
    found = {name: (name, value) for name, value in env.items() if name.startswith(_PREFIX) and value}
    for word in flags:
        name, _, url = word.partition("=")
        if not re.fullmatch(r"[\w.-]+", name) or not url:
            raise InputError(f"--index '{word}' names no index and URL", cure="write it as NAME=URL")
        found[variable(name)] = ("--index", url)
    return {name: _checked(url, said_by) for name, (said_by, url) in found.items()}


def _checked(url: str, said_by: str) -> str:
    from strix_finetune.netconf import redact
    from strix_finetune.web import is_safe

    if not is_safe(url) or re.search(r"[\s?#]", url):
        cure = "it begins with https://, or with http:// on this host alone, and holds no password"
        raise InputError(f"'{redact(url)}' of {said_by} cannot be the URL of an index", cure=cure)
    return url.rstrip("/")


def check_names(flags: Sequence[str], known: Sequence[str], channel: str) -> None:
    """Raise InputError for a flag that names an index which the channel does not have."""
    for word in flags:
        name = word.partition("=")[0]
        if variable(name) not in map(variable, known):
            raise InputError(f"the channel {channel} has no index '{name}'", cure=nearest(name, known))


def address(wheel: WheelLock, index: Index, mirror: str) -> str:
    """Where to fetch a locked file: at the same place below the mirror, or at <project>/<file> where the locked address
    is not below the index's own."""
    if not mirror:
        return wheel.url
    return f"{mirror}/{_below(wheel, index.url)}"


def canonical(wheel: WheelLock, index: Index, mirror: str) -> WheelLock:
    """What the lock says of a file that was found on a mirror: its address on the channel's own index."""
    if not mirror:
        return wheel
    return replace(wheel, url=f"{index.url}/{_below(wheel, mirror)}")


def _below(wheel: WheelLock, url: str) -> str:
    from urllib.parse import quote

    if wheel.url.startswith(f"{url}/"):
        return wheel.url.removeprefix(f"{url}/")
    return f"{wheel.name}/{quote(wheel.file, safe='')}"
