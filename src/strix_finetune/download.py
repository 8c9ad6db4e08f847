"""One HTTP download into an open file: tried again after faults, gone on with after cuts, hashed on the way."""

from __future__ import annotations

import errno
import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import IO, Any, NoReturn

from strix_finetune import web
from strix_finetune.errors import FetchFailed
from strix_finetune.netconf import redact
from strix_finetune.web import file_name

CHUNK = 1 << 18
_TIMEOUT = 30.0
# attempts that bring nothing, one after another; one that brings bytes starts the count anew
_FRUITLESS = 5
_ATTEMPTS = 50

Progress = Callable[[int, int], None]


class Gone(FetchFailed):
    """The server no longer has the file."""


class WrongFile(FetchFailed):
    """What the server has is not what the lock names: no byte of it is worth keeping."""


class _Again(Exception):
    """A fault that may be gone at the next attempt; `wait` is what the server asks for, in seconds."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass
class Download:
    """`sha256` empty and `size` 0 where they are not known; the first answer then says the size.

    `absent`: HTTP statuses by which the server says that it does not have the file.
    """

    url: str
    sha256: str
    size: int
    out: IO[bytes]
    browser: urllib.request.OpenerDirector
    on_progress: Progress
    done: int = 0
    resumed: bool = False
    hasher: Any = field(default_factory=hashlib.sha256)
    version: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    absent: Collection[int] = (404, 410)

    def go_on(self) -> bool:
        """Take over what an earlier download left in `out`; whether that is the whole file already."""
        while piece := self.out.read(CHUNK):
            self.hasher.update(piece)
            self.done += len(piece)
        self.resumed = self.done > 0
        if self.hasher.hexdigest() == self.sha256:
            return True
        if self.size and self.done >= self.size:
            self._restart()
        return False

    def run(self, sleep: Callable[[float], None]) -> None:
        fruitless = 0
        for _ in range(_ATTEMPTS):
            before = self.done
            try:
                self._attempt()
                if self._is_right():
                    return
                reason, wait = "it changed while it was downloaded", None
            except _Again as fault:
                reason, wait = str(fault), fault.wait
            fruitless = 0 if self.done > before else fruitless + 1
            if fruitless >= _FRUITLESS:
                break
            sleep(web.pause(fruitless, wait))
        came = f"{self.done} of {self.size} bytes came" if self.size else f"{self.done} bytes came"
        raise FetchFailed(
            f"{file_name(self.url)} could not be downloaded ({reason}, {came})",
            cure="check the network and the proxy settings, then try again",
        )

    def _attempt(self) -> None:
        """Read on from where the last attempt ended. Raises _Again, or FetchFailed where trying again is no use."""
        headers = {"Accept-Encoding": "identity", **self.headers}
        if self.done and not self.sha256 and not self.version:
            # no hash would tell that the parts belong to different files
            self._restart()
        if self.done:
            headers["Range"] = f"bytes={self.done}-"
            if not self.sha256:
                headers["If-Range"] = self.version
        try:
            with self.browser.open(urllib.request.Request(self.url, headers=headers), timeout=_TIMEOUT) as answer:
                self._begin(answer.status, answer.headers)
                # read1 hands over what is there: what came before a stall is not lost
                while piece := answer.read1(CHUNK):
                    self._take(piece)
        except urllib.error.HTTPError as error:
            self._refused(error)
        except web.UnsafeRedirect:
            self._misled()
        except (http.client.HTTPException, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            raise _Again(redact(reason)) from None
        if self.done < self.size:
            raise _Again("the connection was cut")

    def _begin(self, status: int, headers: Message) -> None:
        """Settle where the answer's bytes belong, and stop at once when their number cannot be right."""
        told = headers.get("Content-Length", "")
        if status == 206:
            if not headers.get("Content-Range", "").startswith(f"bytes {self.done}-"):
                self._restart()
                raise _Again("the server sends another part than was asked for")
            self.resumed = True
        elif self.done:
            self._restart()
        if not self.sha256:
            self._learn(headers)
        elif told.isdigit() and self.size and self.done + int(told) != self.size:
            raise WrongFile(
                f"{file_name(self.url)} has {self.done + int(told)} bytes there, and the lock says {self.size}",
                cure="correct the archive's size and sha256 if the new file is right",
            )
        elif told.isdigit():
            self.size = self.done + int(told)

    def _learn(self, headers: Message) -> None:
        """What the server says of a file that no lock names yet: how long it is, and which version of it this is."""
        told = headers.get("Content-Length", "")
        if not told.isdigit():
            raise FetchFailed(
                f"{web.place(self.url)} has no length, so that a cut would not be seen", cure="use another server"
            )
        self.size = self.done + int(told)
        etag = headers.get("ETag", "")
        # a weak tag may stay the same while bytes change
        self.version = etag if etag.startswith('"') else ""

    def _take(self, piece: bytes) -> None:
        if self.size and self.done + len(piece) > self.size:
            raise WrongFile(
                f"{file_name(self.url)} is longer than the {self.size} bytes that the lock says",
                cure="correct the archive's size and sha256 if the new file is right",
            )
        self.out.write(piece)
        self.hasher.update(piece)
        self.done += len(piece)
        self.on_progress(self.done, self.size)

    def _is_right(self) -> bool:
        """Whether the hash is right. A file put together from several answers gets a second chance in one piece."""
        found = self.hasher.hexdigest()
        if found == self.sha256 or not self.sha256:
            self.out.flush()
            return True
        if self.resumed:
            self._restart()
            self.resumed = False
            return False
        raise WrongFile(
            f"{file_name(self.url)} is not the file that the lock names: its sha256 is {found}, not {self.sha256}",
            cure="find out why before you trust the new file",
        )

    def _misled(self) -> NoReturn:
        raise FetchFailed(f"{web.place(self.url)} redirects to a place that is not safe", cure="check the URL")

    def _refused(self, error: urllib.error.HTTPError) -> NoReturn:
        if error.code < 400:
            self._misled()
        if error.code == 416:
            self._restart()
            raise _Again("the server has no such part")
        if error.code == 429 or error.code >= 500:
            raise _Again(f"HTTP {error.code}", web.retry_after(error.headers))
        answer = f"the server answers HTTP {error.code} for {web.place(self.url)}"
        if error.code in self.absent:
            raise Gone(answer, cure="the file is gone, name another one")
        raise FetchFailed(answer, cure="check the URL")

    def _restart(self) -> None:
        self.out.seek(0)
        self.out.truncate()
        self.hasher, self.done = hashlib.sha256(), 0
