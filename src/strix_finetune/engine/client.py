"""The engine protocol over the docker Python SDK: Docker itself, and Podman's Docker-compatible socket."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import requests
from docker.errors import APIError, NotFound
from docker.utils import parse_repository_tag

from strix_finetune.engine import building, running, transfer, wire
from strix_finetune.engine.base import (
    BuildEvent,
    BuildRequest,
    EngineInfo,
    Image,
    Layer,
    RunRequest,
    RunResult,
)
from strix_finetune.engine.drivers import is_orphan
from strix_finetune.engine.failures import Callback, engine_errors
from strix_finetune.engine.ongoing import Ongoing
from strix_finetune.engine.specs import check
from strix_finetune.errors import EngineError, InputError, Problem, StrixError
from strix_finetune.names import has_host

if TYPE_CHECKING:
    from docker import APIClient


# seconds for other threads to see that their containers are gone
_PATIENCE = 3.0


class SdkEngine:
    """A connected engine. Methods may be called from several threads at once.

    `on_close` ends what was started for this connection. An engine that is not `here` has the files and devices of
    another machine, of which this one knows nothing.
    """

    def __init__(
        self,
        api: APIClient,
        info: EngineInfo,
        *,
        on_close: Callable[[], None] | None = None,
        here: bool = True,
    ) -> None:
        self._api = api
        self._info = info
        self._has_init = True
        self._ongoing = Ongoing()
        self._on_close = on_close
        self._here = here

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def api(self) -> APIClient:
        """The SDK's client, for tests and for what the protocol does not cover."""
        return self._api

    def images(self, label: str) -> list[Image]:
        with engine_errors("list images", self._info.url):
            listed = self._api.images(filters={"label": label})
        merged: dict[str, Image] = {}
        for record in listed:
            image = _image(record, record.get("Labels"))
            known = merged.get(image.id)
            if known:  # Podman lists an image once per name
                tags = tuple(dict.fromkeys((*known.tags, *image.tags)))
                image = Image(image.id, tags, known.labels or image.labels, image.size)
            merged[image.id] = image
        return list(merged.values())

    def image(self, ref: str) -> Image | None:
        record = self._inspected(ref)
        return None if record is None else _image(record, (record.get("Config") or {}).get("Labels"))

    def _inspected(self, ref: str) -> dict[str, Any] | None:
        with engine_errors(f"look up the image {ref}", self._info.url):
            try:
                record: dict[str, Any] = self._api.inspect_image(ref)  # type: ignore[no-untyped-call]
            except NotFound:
                return None
        return record

    def history(self, ref: str) -> list[Layer]:
        with engine_errors(f"read the layers of {ref}", self._info.url):
            records: Any = self._api.history(ref)  # type: ignore[no-untyped-call]
        return [Layer(str(record.get("CreatedBy") or ""), int(record.get("Size") or 0)) for record in records]

    def configuration(self, ref: str) -> dict[str, Any] | None:
        record = self._inspected(ref)
        if record is None:
            return None
        return {
            "architecture": record.get("Architecture") or "amd64",
            "os": record.get("Os") or "linux",
            "config": record.get("Config") or {},
            "rootfs": {"type": "layers", "diff_ids": (record.get("RootFS") or {}).get("Layers") or []},
        }

    def build(self, request: BuildRequest, on_event: Callable[[BuildEvent], None]) -> str:
        self._ongoing.check()
        params = building.parameters(request, self._info.kind)
        context = building.ContextStream(request.context)
        callback = Callback(on_event)
        try:
            with (
                engine_errors("build the image", self._info.url, callback),
                wire.streamed(
                    self._api,
                    "/build",
                    "build the image",
                    params=params,
                    body=context,
                    headers={"Content-Type": "application/x-tar"},
                    ongoing=self._ongoing,
                ) as chunks,
            ):
                return building.follow(building.records(chunks), request, callback)
        except EngineError as error:
            if isinstance(context.error, StrixError):
                raise context.error from None
            if context.error is not None:
                raise EngineError(Problem(f"the build context could not be read: {context.error}")) from error
            raise building.refused(error, request) from error.__cause__

    def tag(self, image: str, ref: str) -> None:
        repository, tag = _split(ref)
        with engine_errors(f"tag {image} as {ref}", self._info.url):
            self._api.tag(image, repository, tag, force=True)

    def untag(self, ref: str) -> None:
        found = self.image(ref)
        if found is None:
            return
        repository, tag = _split(ref)
        with engine_errors(f"remove the name {ref}", self._info.url):
            if self._info.kind == "podman":
                # Its `rmi` refuses, or with force takes containers along; this removes the name and nothing else.
                path = f"/libpod/images/{ref}/untag"
                wire.call(self._api, "POST", path, f"remove the name {ref}", params={"repo": repository, "tag": tag})
                self.remove(found.id)
                return
            try:
                self._api.remove_image(ref)
            except NotFound:
                return
            except APIError as error:
                if error.status_code != 409:
                    raise
                # Its last name, and a container uses it: force takes the name and leaves the image.
                with suppress(NotFound):
                    self._api.remove_image(ref, force=True, noprune=True)

    def remove(self, image: str) -> None:
        found = self.image(image)
        if found is None or found.tags:
            return
        with engine_errors(f"remove the image {image}", self._info.url):
            try:
                self._api.remove_image(found.id)
            except APIError as error:
                if error.status_code not in (404, 409):
                    raise

    def run(self, request: RunRequest, on_output: Callable[[bytes], None]) -> RunResult:
        check(request, here=self._here)
        callback = Callback(on_output)
        with engine_errors(f"run {request.image}", self._info.url, callback):
            if self._has_init:
                try:
                    return running.run(self._api, request, callback, self._info, self._ongoing, init=True)
                except running.NoInit:
                    self._has_init = False
            return running.run(self._api, request, callback, self._info, self._ongoing, init=False)

    def reap(self, label: str) -> int:
        count = 0
        with engine_errors("look for containers that were left behind", self._info.url):
            for record in self._api.containers(all=True, filters={"label": label}):
                age = time.time() - float(record.get("Created") or 0)
                if not is_orphan(record.get("Labels") or {}, running=record.get("State") == "running", age=age):
                    continue
                try:
                    self._api.remove_container(record["Id"], force=True, v=True)
                except APIError as error:
                    if error.status_code not in (404, 409):
                        raise
                    continue
                count += 1
        return count

    def pull(self, ref: str, on_status: Callable[[str], None]) -> Image:
        repository, tag = parse_repository_tag(ref)
        callback = Callback(on_status)
        with engine_errors(f"pull {ref}", self._info.url, callback):
            told = transfer.pull(self._api, self._info.kind, repository, tag or "latest", callback)
        found = self.image(told or ref)
        if found is None:
            raise EngineError(Problem(f"the engine said that it pulled {ref}, but it is not in its store"))
        return found

    def export(self, ref: str) -> Iterator[bytes]:
        path = f"/images/{ref}/get"
        doing = f"export {ref}"
        with engine_errors(doing, self._info.url), wire.streamed(self._api, path, doing, method="GET") as chunks:
            yield from chunks

    def load(self, archive: Callable[[], Iterator[bytes]]) -> None:
        with engine_errors("load an image", self._info.url):
            transfer.load(self._api, archive())

    def close(self) -> None:
        self._ongoing.end(lambda name: running.remove(self._api, name, self._info), _PATIENCE)
        with suppress(requests.RequestException):
            self._api.close()
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close()


def _split(ref: str) -> tuple[str, str]:
    """Repository and tag of a fully qualified name."""
    repository, tag = parse_repository_tag(ref)
    if not has_host(repository):
        raise InputError(
            Problem(f"'{ref}' does not say which registry it belongs to", cure=f"write it out, like localhost/{ref}")
        )
    return repository, tag or "latest"


def _image(record: dict[str, Any], labels: dict[str, str] | None) -> Image:
    image_id = str(record["Id"])
    return Image(
        id=image_id if image_id.startswith("sha256:") else f"sha256:{image_id}",
        tags=tuple(tag for tag in record.get("RepoTags") or () if tag != "<none>:<none>"),
        labels=dict(labels or {}),
        size=int(record.get("Size") or 0),
        digests=tuple(dict.fromkeys(word.partition("@")[2] for word in record.get("RepoDigests") or () if "@" in word)),
    )
