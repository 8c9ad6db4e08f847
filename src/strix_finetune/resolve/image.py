"""Ask a registry which digest a name has today, and what it consists of: no engine, no credentials kept.

The digest is that of what the tag names, most often an index of platforms; the engine picks its own from it.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strix_finetune import web
from strix_finetune.errors import FetchFailed, InputError, LockError
from strix_finetune.netconf import NetSettings, is_loopback

_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_NAME = re.compile(
    r"(?P<host>[A-Za-z0-9.-]+(?::\d+)?)/(?P<path>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)(?::(?P<tag>\w[\w.-]{0,127}))?"
)
_PLATFORM = ("linux", "amd64")
_TIMEOUT = 30.0
_LARGEST = 4 << 20


@dataclass(frozen=True, slots=True)
class Reference:
    """A fully qualified image name, taken apart."""

    host: str
    path: str
    tag: str

    @property
    def url(self) -> str:
        return self.at(f"manifests/{self.tag}")

    def at(self, path: str) -> str:
        """The URL of something of this image."""
        # the engines, too, speak plain HTTP with this host alone
        scheme = "http" if is_loopback(self.host) else "https"
        # the registry of docker.io answers under another name
        host = "registry-1.docker.io" if self.host == "docker.io" else self.host
        return f"{scheme}://{host}/v2/{self.path}/{path}"


def parse(name: str) -> Reference:
    """Take `host/path:tag` apart. Raises InputError for a short name: which registry it means depends on the host."""
    match = _NAME.fullmatch(name)
    host = match["host"] if match else ""
    if match is None or not ("." in host or ":" in host or host == "localhost"):
        raise InputError(f"'{name}' is not a full image name", cure="write it as host/name:tag")
    return Reference(host, match["path"], match["tag"] or "latest")


@dataclass(frozen=True, slots=True)
class Blob:
    """A part of an image: its digest ("sha256:…"), size in bytes, and where the registry has it."""

    digest: str
    size: int
    url: str


@dataclass(frozen=True, slots=True)
class Contents:
    """What an image consists of. `manifests`: digest → bytes, the one that was asked for first, then the platform's."""

    manifests: Mapping[str, bytes]
    config: Blob
    layers: tuple[Blob, ...]


def digest(name: str, settings: NetSettings) -> str:
    """The digest ("sha256:…") of the image that the registry serves as `name` now.

    Raises LockError when it has no such image, FetchFailed when it cannot be reached or wants a password.
    """
    reference = parse(name)
    body, told = _manifest(name, reference, reference.tag, settings)
    found = _sha256(body)
    if told and told != found:
        raise FetchFailed(f"the registry {reference.host} sent another manifest for '{name}' than it says")
    return found


def contents(name: str, digest: str, settings: NetSettings) -> Contents:
    """The parts of the image `digest` for this machine's platform. Raises as `digest` does."""
    reference = parse(name)
    manifests: dict[str, bytes] = {}
    wanted = digest
    for _ in range(2):
        body, _ = _manifest(name, reference, wanted, settings)
        if _sha256(body) != wanted:
            raise FetchFailed(f"the registry {reference.host} sent another manifest of '{name}' than {wanted}")
        manifests[wanted] = body
        try:
            told = json.loads(body)
            if "layers" in told:
                return Contents(
                    manifests,
                    _blob(told["config"], reference),
                    tuple(_blob(layer, reference) for layer in told["layers"]),
                )
            wanted = _of_platform(told)
        except (ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise FetchFailed(f"the manifest {wanted} of '{name}' cannot be read ({reason})") from None
        if not wanted:
            break
    raise FetchFailed(f"the image '{name}' has nothing for {_PLATFORM[0]}/{_PLATFORM[1]}", cure="name another image")


def authorization(url: str, settings: NetSettings) -> dict[str, str]:
    """The headers with which a registry gives out the blob at `url`: an anonymous token, where it wants one."""
    try:
        headers = {"Range": "bytes=0-0", "Accept-Encoding": "identity"}
        with web.opener(settings).open(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT):
            return {}
    except urllib.error.HTTPError as error:
        challenge = error.headers.get("WWW-Authenticate", "")
        if error.code != 401 or not challenge.lower().startswith("bearer "):
            return {}
        parts = urllib.parse.urlsplit(url)
        path = parts.path.removeprefix("/v2/").partition("/blobs/")[0]
        reference = Reference(parts.netloc, path, "")
        try:
            return {"Authorization": f"Bearer {_token(web.opener(settings), challenge, reference)}"}
        except (OSError, http.client.HTTPException, ValueError):
            return {}
    except (web.UnsafeRedirect, OSError, http.client.HTTPException):
        # the download itself will say what is wrong
        return {}


def _manifest(name: str, reference: Reference, wanted: str, settings: NetSettings) -> tuple[bytes, str]:
    """The manifest of a tag or digest, and the digest that the registry says it has."""
    browser = web.opener(settings)
    headers = {"Accept": ", ".join(_TYPES)}
    url = reference.at(f"manifests/{wanted}")
    try:
        try:
            return _get(browser, url, headers)
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate", "")
            if error.code != 401 or not challenge.lower().startswith("bearer "):
                raise
            token = _token(browser, challenge, reference)
            return _get(browser, url, headers | {"Authorization": f"Bearer {token}"})
    except urllib.error.HTTPError as error:
        if error.code == 404:
            cure = "check the name and the tag in the channel"
            raise LockError(f"the registry {reference.host} has no image '{name}'", cure=cure) from None
        if error.code in (401, 403):
            raise FetchFailed(
                f"the registry {reference.host} does not let anyone read '{name}' (HTTP {error.code})",
                cure="use an image that is public",
            ) from None
        raise FetchFailed(f"the registry {reference.host} answers HTTP {error.code} for '{name}'") from None
    except web.UnsafeRedirect:
        raise FetchFailed(f"the registry {reference.host} redirects '{name}' to a place that is not safe") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise FetchFailed(
            f"the registry {reference.host} cannot be asked for '{name}' ({reason})",
            cure="check the network and the proxy settings",
        ) from None


def _of_platform(index: Mapping[str, Any]) -> str:
    """The digest of this machine's manifest in an index; empty where it has none."""
    for row in index["manifests"]:
        platform = row.get("platform", {})
        if (platform.get("os"), platform.get("architecture")) == _PLATFORM:
            return str(row["digest"])
    return ""


def _blob(row: Mapping[str, Any], reference: Reference) -> Blob:
    found = str(row["digest"])
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", found):
        raise ValueError(f"'{found}' is no sha256 digest")
    return Blob(found, int(row["size"]), reference.at(f"blobs/{found}"))


def _sha256(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def _get(browser: urllib.request.OpenerDirector, url: str, headers: dict[str, str]) -> tuple[bytes, str]:
    """The body and the digest that the registry says it has."""
    with browser.open(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT) as answer:
        body = answer.read(_LARGEST + 1)
        if len(body) > _LARGEST:
            raise ValueError("the answer is too long for a manifest")
        return body, answer.headers.get("Docker-Content-Digest", "")


def _token(browser: urllib.request.OpenerDirector, challenge: str, reference: Reference) -> str:
    """An anonymous token from the place that the registry names."""
    asked = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = asked.get("realm", "")
    if not realm.startswith("https://") and not (realm.startswith("http://") and reference.url.startswith("http://")):
        raise ValueError("it asks to log in at an address that is not safe")
    query = {"service": asked.get("service", ""), "scope": asked.get("scope", f"repository:{reference.path}:pull")}
    body, _ = _get(browser, f"{realm}?{urllib.parse.urlencode({k: v for k, v in query.items() if v})}", {})
    answer = json.loads(body)
    token = (answer.get("token") or answer.get("access_token")) if isinstance(answer, dict) else None
    if not isinstance(token, str):
        raise ValueError("it gave no token")
    return token
