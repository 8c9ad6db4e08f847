"""Pull and load that cannot succeed silently: an engine answers 200 and fails in the stream, so all of it is read.

Pushing is none of the engine's work: `strix_finetune.registry` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from strix_finetune.engine import wire
from strix_finetune.engine.base import EngineKind
from strix_finetune.engine.building import error_of, records
from strix_finetune.engine.failures import cure_of, one_line
from strix_finetune.errors import EngineError, Problem
from strix_finetune.names import has_host
from strix_finetune.netconf import is_loopback

if TYPE_CHECKING:
    from docker import APIClient

Status = Callable[[str], None]


def pull(api: APIClient, kind: EngineKind, repository: str, tag: str, on_status: Status) -> str:
    """Pull one name. `tag` may be a digest ("sha256:…"). Returns the image's id where the engine tells it."""
    mark = "@" if tag.startswith("sha256:") else ":"
    ref = f"{repository}{mark}{tag}"
    headers = _login(api, repository)
    if kind == "podman":
        path = "/libpod/images/pull"
        params = {"reference": ref}
        if has_host(repository):
            # Docker takes loopback registries as plain HTTP by itself; Podman wants to be told.
            params["tlsVerify"] = "false" if is_loopback(repository) else "true"
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


def _follow(answer: Iterable[dict[str, Any]], doing: str, on_status: Status) -> None:
    """Read to the end, then raise if there was an error record."""
    error = ""
    shown: dict[str, str] = {}
    for record in answer:
        error = error or error_of(record)
        status, part = str(record.get("status") or record.get("stream") or "").strip(), str(record.get("id") or "")
        if status and shown.get(part) != status:  # progress repeats the same status many times a second
            shown[part] = status
            on_status(f"{part}: {status}" if part else status)
    if error:
        raise EngineError(Problem(f"could not {doing}: {one_line(error)}", cure=cure_of(error)))


def _login(api: APIClient, repository: str) -> dict[str, str]:
    """Docker's login as a header. None where there is none: Podman has logins of its own, which an empty one hides."""
    from docker import auth

    host, _ = auth.resolve_repository_name(repository)
    header = auth.get_config_header(api, host)
    if not header:
        return {}
    return {"X-Registry-Auth": header.decode() if isinstance(header, bytes) else str(header)}
