"""Download one file that the lock names: streamed, checked on the way, resumed after a cut, whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import http.client
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import IO, Any, NoReturn

from strix_finetune import leftovers, web
from strix_finetune.errors import FetchFailed, InputError, WorkError
from strix_finetune.netconf import NetSettings, redact

CHUNK = 1 << 18
_TIMEOUT = 30.0
# attempts that bring nothing, one after another; one that brings bytes starts the count anew
_FRUITLESS = 5
_ATTEMPTS = 50
_LONGEST_WAIT = 60.0

Progress = Callable[[int, int], None]


def fetch(
    url: str,
    sha256: str,
    size: int,
    folder: Path,
    settings: NetSettings,
    *,
    on_progress: Progress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """The file in `folder` named by its sha256; downloaded when it is not there yet. `size` is in bytes.

    `on_progress` hears the bytes so far and `size`. Network faults, HTTP 5xx and 429 are tried again; `sleep` waits.
    Raises FetchFailed when the file cannot be had or is not what the lock says, InputError for a URL that may not be
    used. A failure leaves nothing behind.
    """
    path = folder / sha256
    if is_whole(path, sha256, size):
        return path
    if not web.is_safe(url):
        raise InputError(
            f"'{redact(url)}' cannot be downloaded", cure="an archive's URL begins with https:// and holds no password"
        )
    folder.mkdir(parents=True, exist_ok=True)
    leftovers.remove_leftovers(folder)
    try:
        with leftovers.temporary(folder, sha256) as part:
            with part.open("wb") as out:
                _Download(url, sha256, size, out, web.opener(settings), on_progress or (lambda done, size: None)).run(
                    sleep
                )
            part.replace(path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise WorkError(f"the disk is full, {_name(url)} does not fit", cure=f"make room in {folder}") from None
        raise WorkError(f"{_name(url)} cannot be written to {folder} ({error.strerror})") from None
    return path


def is_whole(path: Path, sha256: str, size: int) -> bool:
    """Whether the cache has the file, unharmed."""
    if not path.is_file() or path.stat().st_size != size:
        return False
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == sha256


class _Again(Exception):
    """A fault that may be gone at the next attempt; `wait` is what the server asks for, in seconds."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass
class _Download:
    url: str
    sha256: str
    size: int
    out: IO[bytes]
    browser: urllib.request.OpenerDirector
    on_progress: Progress
    done: int = 0
    resumed: bool = False
    hasher: Any = field(default_factory=hashlib.sha256)

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
            # the random part keeps many machines from coming back at the same moment
            sleep(min(_LONGEST_WAIT, wait if wait is not None else 2.0**fruitless * random.uniform(0.25, 0.5)))
        raise FetchFailed(
            f"{_name(self.url)} could not be downloaded ({reason}, {self.done} of {self.size} bytes came)",
            cure="check the network and the proxy settings, then try again",
        )

    def _attempt(self) -> None:
        """Read on from where the last attempt ended. Raises _Again, or FetchFailed where trying again is no use."""
        headers = {"Accept-Encoding": "identity"}
        if self.done:
            headers["Range"] = f"bytes={self.done}-"
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
        if told.isdigit() and self.done + int(told) != self.size:
            raise FetchFailed(
                f"{_name(self.url)} has {self.done + int(told)} bytes there, and the lock says {self.size}",
                cure="correct the archive's size and sha256 if the new file is right",
            )

    def _take(self, piece: bytes) -> None:
        if self.done + len(piece) > self.size:
            raise FetchFailed(
                f"{_name(self.url)} is longer than the {self.size} bytes that the lock says",
                cure="correct the archive's size and sha256 if the new file is right",
            )
        self.out.write(piece)
        self.hasher.update(piece)
        self.done += len(piece)
        self.on_progress(self.done, self.size)

    def _is_right(self) -> bool:
        """Whether the hash is right. A file put together from several answers gets a second chance in one piece."""
        found = self.hasher.hexdigest()
        if found == self.sha256:
            self.out.flush()
            return True
        if self.resumed:
            self._restart()
            self.resumed = False
            return False
        raise FetchFailed(
            f"{_name(self.url)} is not the file that the lock names: its sha256 is {found}, not {self.sha256}",
            cure="find out why before you trust the new file",
        )

    def _misled(self) -> NoReturn:
        raise FetchFailed(f"{_place(self.url)} redirects to a place that is not safe", cure="check the URL")

    def _refused(self, error: urllib.error.HTTPError) -> NoReturn:
        if error.code < 400:
            self._misled()
        if error.code == 416:
            self._restart()
            raise _Again("the server has no such part")
        if error.code == 429 or error.code >= 500:
            raise _Again(f"HTTP {error.code}", _retry_after(error.headers))
        cure = "the file is gone, name another one" if error.code in (404, 410) else "check the URL"
        raise FetchFailed(f"the server answers HTTP {error.code} for {_place(self.url)}", cure=cure)

    def _restart(self) -> None:
        self.out.seek(0)
        self.out.truncate()
        self.hasher, self.done = hashlib.sha256(), 0


def _retry_after(headers: Message) -> float | None:
    """Seconds that the server wants us to wait; it says a number or a date."""
    text = headers.get("Retry-After", "").strip()
    if text.isdigit():
        return float(text)
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, ((date if date.tzinfo else date.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds())


def _place(url: str) -> str:
    """The URL without what may be secret in it."""
    return redact(url).partition("?")[0]


def _name(url: str) -> str:
    return _place(url).rsplit("/", 1)[-1] or _place(url)
