"""Fetching one blob into a file: hashed on the way, gone on with after a cut, by this process or a later one."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from strix_finetune import fetch
from strix_finetune.errors import Problem
from strix_finetune.oci.descriptor import Descriptor
from strix_finetune.registry.faults import Unreachable, Untrusted
from strix_finetune.registry.http import Http

if TYPE_CHECKING:
    import requests

# of a block that is cut nothing is handed over
_BLOCK = 1 << 15
_FRUITLESS = 5
_CUT = "the connection was cut"


class Download:
    """One blob on its way into `path`; before it is whole it lies beside that, with the ending `.part`."""

    def __init__(self, http: Http, wanted: Descriptor, path: Path, progress: Callable[[int], None]) -> None:
        self._http, self._wanted, self._path, self._progress = http, wanted, path, progress
        self._hasher: Any = hashlib.sha256()
        self._done = 0

    def run(self) -> None:
        if fetch.is_whole(self._path, self._wanted.digest.removeprefix("sha256:"), self._wanted.size):
            self._progress(self._wanted.size)
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_name(f"{self._path.name}.part")
        with part.open("a+b") as out:
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
            out.flush()
            right = self._done == self._wanted.size and f"sha256:{self._hasher.hexdigest()}" == self._wanted.digest
            if not right and resumed:
                # put together from several answers, of which one may have been wrong: once more in one piece
                self._restart(out)
                fault = self._attempt(out)
                if fault:
                    raise fault
                out.flush()
                right = f"sha256:{self._hasher.hexdigest()}" == self._wanted.digest
        if not right:
            part.unlink()
            raise Untrusted(
                Problem(
                    f"{self._http.repository.at(self._wanted.digest)} is not what its digest says",
                    cure="do not use this registry before somebody has found out why",
                )
            )
        part.replace(self._path)

    def _attempt(self, out: IO[bytes]) -> Unreachable | None:
        """Read on from where the last attempt ended; returns the fault that ended it before its time."""
        import requests

        headers = {"Range": f"bytes={self._done}-"} if self._done else {}
        url = self._http.repository.url(f"blobs/{self._wanted.digest}")
        doing = f"pull from {self._http.repository}"
        answer = self._http.ask("GET", url, doing=doing, ok=(200, 206, 416), headers=headers, stream=True)
        with answer:
            if answer.status_code != 206 or not _begins(answer, self._done):
                self._restart(out)
            if answer.status_code == 416:
                return Unreachable(f"could not {doing}: {_CUT}")
            try:
                for piece in answer.iter_content(_BLOCK):
                    if self._done + len(piece) > self._wanted.size:
                        raise Untrusted(f"{self._http.repository.at(self._wanted.digest)} is longer than it says")
                    out.write(piece)
                    self._hasher.update(piece)
                    self._done += len(piece)
                    self._progress(self._done)
            except requests.RequestException:
                out.flush()
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                out.flush()
        if self._done < self._wanted.size:
            return Unreachable(Problem(f"could not {doing}: {_CUT}", cure="try again: what came is kept"))
        return None

    def _restart(self, out: IO[bytes]) -> None:
        out.seek(0)
        out.truncate()
        self._hasher, self._done = hashlib.sha256(), 0


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
