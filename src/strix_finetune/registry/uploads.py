"""Sending one blob: mounted from another repository, in one piece, or in pieces that are gone on with after a cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlencode, urljoin

from strix_finetune.errors import Problem
from strix_finetune.oci.descriptor import Content
from strix_finetune.registry.faults import RegistryError, Unreachable
from strix_finetune.registry.http import Body, Http

if TYPE_CHECKING:
    import requests

How = Literal["present", "mounted", "sent"]

# bytes: small enough that little is lost by a cut, and for proxies that take no more; large enough that the round
# trips do not count
PIECE = 48 << 20
# cuts in a row without a byte more
_FRUITLESS = 5
_RANGE = re.compile(r"(?:bytes=)?0-(\d+)")
# what a registry says of an upload that it does not know any more, or of which it has another part than we think
_GIVEN_UP = (404, 416)
_OCTETS = "application/octet-stream"


class Upload:
    """One blob on its way. `progress` hears how many bytes are there; after a cut that may be less than before."""

    def __init__(
        self, http: Http, content: Content, progress: Callable[[int], None], *, piece: int | None = None
    ) -> None:
        self._http, self._content, self._progress = http, content, progress
        self._piece = piece or PIECE
        self._location = ""

    def run(self, mount_from: str = "") -> How:
        if self._begin(mount_from):
            return "mounted"
        done = fruitless = 0
        while True:
            try:
                self._send(done)
                return "sent"
            except Unreachable as fault:
                before, done = done, self._held()
                fruitless = 0 if done > before else fruitless + 1
                if fruitless >= _FRUITLESS:
                    raise fault
                self._progress(done)

    def _begin(self, mount_from: str = "") -> bool:
        """Open an upload; True where the registry took the blob from another repository instead."""
        digest = self._content.descriptor.digest
        query = ""
        scopes: tuple[str, ...] = ()
        if mount_from:
            query = f"?{urlencode({'mount': digest, 'from': mount_from})}"
            scopes = (f"repository:{mount_from}:pull",)
        url = self._http.repository.url(f"blobs/uploads/{query}")
        answer = self._http.ask(
            "POST", url, doing=self._doing, ok=(201, 202), headers={"Content-Length": "0"}, write=True, scopes=scopes
        )
        answer.close()
        if answer.status_code == 201:
            return True
        self._take(answer)
        return False

    def _send(self, done: int) -> None:
        """Send what is missing, then name the digest. Raises Unreachable at the first cut, or when it was given up."""
        size = self._content.descriptor.size
        if done == 0 and size <= self._piece:
            self._finish(Body(size, lambda: self._part(0, size)))
            return
        while done < size:
            end = min(done + self._piece, size)
            headers = {"Content-Type": _OCTETS, "Content-Range": f"{done}-{end - 1}"}
            body = Body(end - done, lambda begin=done, end=end: self._part(begin, end))  # type: ignore[misc]
            answer = self._write("PATCH", self._location, (202, 204), headers, body)
            self._take(answer)
            done = end
        self._finish(Body(0, lambda: ()))

    def _finish(self, body: Body) -> None:
        mark = "&" if "?" in self._location else "?"
        url = f"{self._location}{mark}{urlencode({'digest': self._content.descriptor.digest})}"
        self._write("PUT", url, (201, 204), {"Content-Type": _OCTETS}, body if body.size else b"")

    def _write(
        self, method: str, url: str, ok: tuple[int, ...], headers: dict[str, str], body: Body | bytes
    ) -> requests.Response:
        if not body:
            headers = headers | {"Content-Length": "0"}
        known = (*ok, *_GIVEN_UP)
        answer = self._http.ask(
            method, url, doing=self._doing, ok=known, headers=headers, body=body, write=True, again=False
        )
        answer.close()
        if answer.status_code in _GIVEN_UP:
            raise Unreachable(Problem(f"could not {self._doing}: the registry gave an upload up", cure="push again"))
        return answer

    def _held(self) -> int:
        """How many bytes the registry holds after a cut. One that has given the upload up begins a new one."""
        answer = self._http.ask("GET", self._location, doing=self._doing, ok=(200, 204, 400, 404, 416), write=True)
        answer.close()
        found = _RANGE.fullmatch(answer.headers.get("Range", ""))
        if answer.status_code in (200, 204) and found:
            self._take(answer)
            # an upload that holds nothing says 0-0 like one that holds a byte; sending the byte again does no harm
            held = int(found[1]) + 1 if int(found[1]) else 0
            if held < self._content.descriptor.size:
                return held
        self._begin()
        return 0

    def _part(self, begin: int, end: int) -> Iterator[bytes]:
        at = begin
        for block in self._content.read(begin):
            block = block[: end - at]
            if block:
                yield block
                at += len(block)
                self._progress(at)
            if at >= end:
                return
        raise RegistryError(
            Problem(f"{self._content.descriptor.digest} ends after {at} of {end} bytes here", cure="push again")
        )

    def _take(self, answer: requests.Response) -> None:
        location = answer.headers.get("Location", "")
        if not location:
            raise RegistryError(f"the registry {self._http.repository.host} does not say where to send a blob")
        self._location = urljoin(self._http.repository.root, location)

    @property
    def _doing(self) -> str:
        return f"push to {self._http.repository}"
