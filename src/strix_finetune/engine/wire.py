"""Requests that the docker SDK has no method for, over the SDK's own session and connection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from strix_finetune.engine.failures import cure_of, message_of
from strix_finetune.errors import EngineError, Problem

if TYPE_CHECKING:
    import requests
    from docker import APIClient

    from strix_finetune.engine.ongoing import Ongoing


def url(api: APIClient, path: str) -> str:
    """The full address of an API path ("/build") in the version that was agreed on."""
    return f"{api.base_url}/v{api.api_version}{path}"


@contextmanager
def streamed(
    api: APIClient,
    path: str,
    doing: str,
    *,
    params: Mapping[str, str] | None = None,
    body: Iterable[bytes] | None = None,
    headers: Mapping[str, str] | None = None,
    method: str = "POST",
    ongoing: Ongoing | None = None,
) -> Iterator[Iterator[bytes]]:
    """Send a request without a time limit and yield the pieces of its answer as they come.

    The connection is closed at the end, which also stops work that the engine does for it; `ongoing` may cut it before.
    Raises EngineError with the engine's own sentence on an error status.
    """
    response: requests.Response = api.request(
        method,
        url(api, path),
        params=dict(params or {}),
        data=body,
        headers=dict(headers or {}),
        stream=True,
        timeout=None,
    )
    try:
        refuse_error(response, doing)
        with ongoing.stream(response) if ongoing else nullcontext():
            yield response.iter_content(chunk_size=None)
    finally:
        response.close()


def call(
    api: APIClient,
    method: str,
    path: str,
    doing: str,
    *,
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
    timeout: float = 60,
) -> Any:
    """A short request, `body` sent as JSON; returns the decoded JSON, or None for an empty answer.

    Seconds of `timeout` per read. Raises EngineError with the engine's own sentence on an error status.
    """
    response: requests.Response = api.request(
        method, url(api, path), params=dict(params or {}), headers=dict(headers or {}), json=body, timeout=timeout
    )
    refuse_error(response, doing)
    return response.json() if response.content.strip() else None


def refuse_error(response: requests.Response, doing: str) -> None:
    if response.status_code >= 400:
        words = message_of(response.content) or f"it was refused without a reason (status {response.status_code})"
        raise EngineError(Problem(f"could not {doing}: {words}", cure=cure_of(words)))
