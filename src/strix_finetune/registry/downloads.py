"""Fetching one blob into a file: hashed on the way, gone on with after a cut, by this process or a later one."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from strix_finetune import fetch
from strix_finetune.errors import Place, Problem, WorkError
from strix_finetune.oci.descriptor import Descriptor
from strix_finetune.registry.faults import Missing, Unreachable, Untrusted
from strix_finetune.registry.http import Http

if TYPE_CHECKING:
    import requests

# of a block that is cut nothing is handed over
_BLOCK = 1 << 15
_FRUITLESS = 5
_MISSING = (404, 410)
_CUT = "the connection was cut"


class Download:
    """One blob on its way into `path`; before it is whole it lies beside that, locked, with the ending `.part`."""

    def __init__(self, http: Http, wanted: Descriptor, path: Path, progress: Callable[[int], None]) -> None:
        self._http, self._wanted, self._path, self._progress = http, wanted, path, progress
        self._part = path.with_name(f"{path.name}.part")
        self._hasher: Any = hashlib.sha256()
        self._done = 0

    def run(self) -> None:
        with fetch.writing(self._place, self._path.parent):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            while not self._is_there():
                with self._part.open("a+b") as out:
                    # whoever waits for another process or thread finds its file, or goes on with what it left
                    fcntl.flock(out, fcntl.LOCK_EX)
                    if not self._is_part(out):
                        continue
                    if self._is_there():
                        self._part.unlink()
                        continue
                    self._fill(out)
                    self._finish(out)
                    return
        self._progress(self._wanted.size)

    @property
    def _place(self) -> str:
        return self._http.repository.at(self._wanted.digest)

    def _is_there(self) -> bool:
        return fetch.is_whole(self._path, self._wanted.digest.removeprefix("sha256:"), self._wanted.size)

    def _is_part(self, out: IO[bytes]) -> bool:
        """Whether an open file still lies where parts do: it may have got its name meanwhile, or be gone."""
        try:
            return os.path.samestat(os.fstat(out.fileno()), self._part.stat())
        except FileNotFoundError:
            return False

    def _fill(self, out: IO[bytes]) -> None:
        """Add what is missing. Raises Unreachable where too little comes of it."""
        out.seek(0)
        while piece := out.read(_BLOCK):
            self._hasher.update(piece)
            self._done += len(piece)
        resumed, fruitless = self._done > 0, 0
        while self._done < self._wanted.size:
            before = self._done
            fault = self._attempt(out)
            fruitless = 0 if self._done > before else fruitless + 1
            if fault and fruitless >= _FRUITLESS:
                raise fault
            resumed = resumed or self._done < self._wanted.size
        if resumed and not self._is_right():
            # put together from several answers, of which one may have been wrong: once more in one piece
            self._restart(out)
            fault = self._attempt(out)
            if fault:
                raise fault

    def _is_right(self) -> bool:
        return self._done == self._wanted.size and f"sha256:{self._hasher.hexdigest()}" == self._wanted.digest

    def _finish(self, out: IO[bytes]) -> None:
        """Give the file its name. What was hashed is what lies in it: nobody else has written since it was locked."""
        out.flush()
        if not self._is_part(out) or os.fstat(out.fileno()).st_size != self._done:
            # a lock holds off nobody who asks for none
            raise WorkError(Problem("another program took or changed this file", Place(self._part), "try again"))
        if not self._is_right():
            self._part.unlink()
            cure = "do not use this registry before somebody has found out why"
            raise Untrusted(Problem(f"{self._place} is not what its digest says", cure=cure))
        # others use the folder, too: a strict umask would keep the file from them
        os.fchmod(out.fileno(), 0o644)
        self._part.replace(self._path)

    def _attempt(self, out: IO[bytes]) -> Unreachable | None:
        """Read on from where the last attempt ended; returns the fault that ended it before its time."""
        headers = {"Range": f"bytes={self._done}-"} if self._done else {}
        url = self._http.repository.url(f"blobs/{self._wanted.digest}")
        doing = f"pull from {self._http.repository}"
        answer = self._http.ask("GET", url, doing=doing, ok=(200, 206, 416, *_MISSING), headers=headers, stream=True)
        with answer:
            if answer.status_code in _MISSING:
                cure = "have it pushed again, or name another image"
                raise Missing(Problem(f"the registry has no {self._place}", cure=cure))
            if answer.status_code != 206 or not _begins(answer, self._done):
                self._restart(out)
            if answer.status_code == 416:
                return Unreachable(f"could not {doing}: {_CUT}")
            for piece in _pieces(answer):
                if self._done + len(piece) > self._wanted.size:
                    raise Untrusted(f"{self._place} is longer than it says")
                out.write(piece)
                self._hasher.update(piece)
                self._done += len(piece)
                self._progress(self._done)
        if self._done < self._wanted.size:
            return Unreachable(Problem(f"could not {doing}: {_CUT}", cure="try again: what came is kept"))
        return None

    def _restart(self, out: IO[bytes]) -> None:
        out.seek(0)
        out.truncate()
        self._hasher, self._done = hashlib.sha256(), 0


def _pieces(answer: requests.Response) -> Iterator[bytes]:
    """What comes of an answer before its end or a cut: a fault of the network, unlike one of whoever takes the pieces,
    is no more than that."""
    import requests

    with suppress(requests.RequestException, OSError):
        yield from answer.iter_content(_BLOCK)


def _begins(answer: requests.Response, at: int) -> bool:
    return answer.headers.get("Content-Range", "").startswith(f"bytes {at}-")


def whole(answer: requests.Response, doing: str, limit: int) -> bytes:
    """The body of an answer, which may not be longer than `limit` bytes."""
    import requests

    body = bytearray()
    try:
        for piece in answer.iter_content(_BLOCK):
            body += piece
            if len(body) > limit:
                raise Untrusted(f"could not {doing}: the answer is too long")
    except (requests.RequestException, OSError):
        raise Unreachable(Problem(f"could not {doing}: {_CUT}", cure="try again")) from None
    return bytes(body)
