"""Push and pull that cannot succeed silently: every record is read, and the result is looked at afterwards."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from strix_finetune.engine import registry, wire
from strix_finetune.engine.base import EngineKind
from strix_finetune.engine.building import error_of, records
from strix_finetune.engine.failures import one_line
from strix_finetune.errors import EngineError, Problem
from strix_finetune.names import has_host

if TYPE_CHECKING:
    from docker import APIClient

Status = Callable[[str], None]

# Older engines refuse a push without the header, even where there is nothing to say.
_NO_AUTH = base64.urlsafe_b64encode(b"{}").decode()


def push(api: APIClient, kind: EngineKind, repository: str, tag: str, on_status: Status) -> str:
    """Push one name. Returns the digest that the registry serves for it afterwards, as asked of the registry."""
    ref = f"{repository}:{tag}"
    params = {"tag": tag}
    if kind == "podman":
        # Docker takes loopback registries as plain HTTP by itself; Podman wants to be told.
        params["tlsVerify"] = "false" if registry.is_loopback(repository) else "true"
    headers = {"X-Registry-Auth": _auth_header(api, repository, kind)}
    with wire.streamed(
        api, f"/images/{repository}/push", f"push {ref}", params=params, headers=_present(headers)
    ) as chunks:
        said = _follow(records(chunks), f"push {ref}", on_status)
    served = _served(api, kind, repository, tag)
    if said and said != served:
        raise EngineError(
            Problem(
                f"{ref} was pushed as {said}, but the registry serves {served}",
                cure="someone else pushed the same name; push again",
            )
        )
    return served


def pull(api: APIClient, kind: EngineKind, repository: str, tag: str, on_status: Status) -> str:
    """Pull one name. `tag` may be a digest ("sha256:…"). Returns the image's id where the engine tells it."""
    mark = "@" if tag.startswith("sha256:") else ":"
    ref = f"{repository}{mark}{tag}"
    headers = _present({"X-Registry-Auth": _auth_header(api, repository, kind)})
    if kind == "podman":
        path = "/libpod/images/pull"
        params = {"reference": ref}
        if has_host(repository):
            params["tlsVerify"] = "false" if registry.is_loopback(repository) else "true"
    else:
        path, params = "/images/create", {"fromImage": repository, "tag": tag}
    with wire.streamed(api, path, f"pull {ref}", params=params, headers=headers) as chunks:
        pulled: list[str] = []
        _follow(_noting(records(chunks), pulled), f"pull {ref}", on_status)
    return pulled[-1] if pulled else ""


def _noting(answer: Iterable[dict[str, Any]], pulled: list[str]) -> Iterable[dict[str, Any]]:
    """The same records; what Podman says that it pulled is noted. It may know a short name by another one."""
    for record in answer:
        pulled += [str(image) for image in record.get("images") or ()]
        yield record


def load(api: APIClient, archive: Iterable[bytes]) -> None:
    """Send an archive of images to the engine's store."""
    doing, headers = "load an image", {"Content-Type": "application/x-tar"}
    with wire.streamed(api, "/images/load", doing, params={"quiet": "1"}, body=archive, headers=headers) as chunks:
        _follow(records(chunks), doing, lambda status: None)


def _follow(answer: Iterable[dict[str, Any]], doing: str, on_status: Status) -> str:
    """Read to the end, raise on an error record, return the digest that was named (or the empty string)."""
    digest = error = ""
    shown: dict[str, str] = {}
    for record in answer:
        error = error or error_of(record)
        aux = record.get("aux")
        if isinstance(aux, dict) and aux.get("Digest"):
            digest = str(aux["Digest"])
        status, part = str(record.get("status") or record.get("stream") or "").strip(), str(record.get("id") or "")
        if status and shown.get(part) != status:  # progress repeats the same status many times a second
            shown[part] = status
            on_status(f"{part}: {status}" if part else status)
    if error:
        raise EngineError(Problem(f"could not {doing}: {one_line(error)}"))
    return digest


def _served(api: APIClient, kind: EngineKind, repository: str, tag: str) -> str:
    """The digest of the manifest behind a name, read back from the registry."""
    if kind == "podman":  # has no such request
        return registry.manifest_digest(repository, tag, registry.credentials(repository))
    path = f"/distribution/{repository}:{tag}/json"
    headers = {"X-Registry-Auth": _auth_header(api, repository, kind)}
    answer = wire.call(api, "GET", path, f"read back {repository}:{tag}", headers=headers)
    digest = (answer or {}).get("Descriptor", {}).get("digest")
    if not digest:
        raise EngineError(Problem(f"the registry names no digest for {repository}:{tag}"))
    return str(digest)


def _auth_header(api: APIClient, repository: str, kind: EngineKind) -> str:
    from docker import auth

    host, _ = auth.resolve_repository_name(repository)
    header = auth.get_config_header(api, host)
    if header:
        return header.decode() if isinstance(header, bytes) else str(header)
    # Podman has logins of its own, and an empty header would hide them.
    return "" if kind == "podman" else _NO_AUTH


def _present(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if value}
