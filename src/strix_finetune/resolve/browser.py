"""Ask servers for pages and for parts of files: patiently, within limits, and every fault is a sentence.

Network faults, cuts, HTTP 5xx and 429 are tried again, with the waits that the server asks for.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from strix_finetune import web
from strix_finetune.errors import FetchFailed, InputError
from strix_finetune.netconf import NetSettings, redact

_ATTEMPTS = 5
_TIMEOUT = 30.0
# the largest page of a package index that is known has 6 MB
LARGEST_PAGE = 32 << 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page:
    """What a server sent: `url` is where it came from in the end, `kind` the media type in lower case."""

    url: str
    kind: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Probe:
    """What a server says of a file without sending it: size in bytes (0: it does not say), whether it sends parts,
    and the version tag, empty where there is no strong one."""

    url: str
    size: int
    parts: bool
    tag: str


class Browser:
    """Asks with the host's proxies and certificates; `sleep` waits, in seconds."""

    def __init__(self, settings: NetSettings, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.settings = settings
        self.sleep = sleep
        self._opener = web.opener(settings)

    def page(
        self, url: str, *, accept: str = "*/*", absent: Collection[int] = (), limit: int = LARGEST_PAGE
    ) -> Page | None:
        """The page at `url`, or None where the status is one of `absent`. Raises FetchFailed."""

        def read(answer: http.client.HTTPResponse) -> Page:
            body = answer.read(limit + 1)
            if len(body) > limit:
                raise FetchFailed(f"{web.place(url)} is longer than {limit >> 20} MB, which no page is")
            if answer.length:
                # a reader that is told how much to read says nothing of a cut
                raise http.client.IncompleteRead(body, answer.length)
            kind = answer.headers.get_content_type()
            return Page(answer.url, kind, body)

        return self._ask(url, {"Accept": accept}, read, absent)

    def probe(self, url: str, *, absent: Collection[int] = ()) -> Probe | None:
        """What the server says of a file, by its first byte: not every server answers HEAD. Raises FetchFailed."""

        def read(answer: http.client.HTTPResponse) -> Probe:
            told = answer.headers.get("Content-Length", "")
            total = answer.headers.get("Content-Range", "").rpartition("/")[2] if answer.status == 206 else told
            tag = answer.headers.get("ETag", "")
            size = int(total) if total.isdigit() else 0
            return Probe(answer.url, size, answer.status == 206, tag if tag.startswith('"') else "")

        return self._ask(url, {"Range": "bytes=0-0"}, read, absent)

    def part(self, url: str, first: int, last: int, tag: str = "") -> bytes:
        """Bytes `first` to `last`, both included, of the version `tag` of a file. Raises FetchFailed."""
        headers = {"Range": f"bytes={first}-{last}"} | ({"If-Range": tag} if tag else {})

        def read(answer: http.client.HTTPResponse) -> bytes:
            told = answer.headers.get("Content-Range", "")
            if answer.status != 206 or not told.startswith(f"bytes {first}-{last}/"):
                raise FetchFailed(f"{web.place(url)} changed while it was read", cure="try again")
            body = answer.read(last - first + 1)
            if len(body) != last - first + 1:
                raise http.client.IncompleteRead(body)
            return body

        found = self._ask(url, headers, read, ())
        assert found is not None
        return found

    def _ask(
        self,
        url: str,
        headers: Mapping[str, str],
        read: Callable[[http.client.HTTPResponse], T],
        absent: Collection[int],
    ) -> T | None:
        if not web.is_safe(url):
            raise InputError(
                f"'{web.place(url)}' cannot be asked", cure="its URL begins with https:// and holds no password"
            )
        reason = ""
        for attempt in range(_ATTEMPTS):
            wait = None
            # a request remembers where it was redirected to, and takes a second time for a circle
            request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", **headers})
            try:
                with self._opener.open(request, timeout=_TIMEOUT) as answer:
                    return read(answer)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code in absent:
                        return None
                    if error.code != 429 and error.code < 500:
                        raise _refused(url, error.code) from None
                    reason, wait = f"HTTP {error.code}", web.retry_after(error.headers)
            except web.UnsafeRedirect:
                raise _misled(url) from None
            except http.client.IncompleteRead:
                reason = "the connection was cut"
            except (http.client.HTTPException, OSError) as error:
                reason = redact(str(getattr(error, "reason", error)) or type(error).__name__)
            if attempt + 1 < _ATTEMPTS:
                self.sleep(web.pause(attempt + 1, wait))
        raise FetchFailed(
            f"{web.place(url)} gives no answer ({reason})",
            cure="check the network and the proxy settings, then try again",
        )


def _refused(url: str, status: int) -> FetchFailed:
    if status < 400:
        return FetchFailed(
            f"{web.place(url)} redirects in a circle, or to a place that is not safe", cure="check the URL"
        )
    if status == 407:
        return FetchFailed(f"the proxy lets nobody ask {web.place(url)} (HTTP 407)", cure="correct the proxy settings")
    cure = "check the URL" if status not in (401, 403) else "check the URL, and whether a proxy stands in between"
    return FetchFailed(f"the server answers HTTP {status} for {web.place(url)}", cure=cure)


def _misled(url: str) -> FetchFailed:
    return FetchFailed(f"{web.place(url)} redirects to a place that is not safe", cure="check the URL")
