"""The stand-in's HTTP server: threads on a free port of the loopback, which remember every request."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

from tests.standin.faults import Cut, Fault, Kind, Slow, Status, damaged
from tests.standin.tree import AGGREGATE, BUCKET, LEGACY, Answer, Tree

_RANGE = re.compile(r"bytes=(?:(?P<first>\d+)-(?P<last>\d*)|-(?P<tail>\d+))")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it was answered: `path` decoded, `range` the header as it came, `sent` bytes of a body."""

    method: str
    path: str
    status: int
    range: str = ""
    query: str = ""
    sent: int = 0


class Standin:
    """Serves a tree until the context ends. `asked` has every request, each before its first byte is answered."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.asked: list[Asked] = []
        self.faults: list[Fault] = []
        self._lock = threading.Lock()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def index(self) -> str:
        """What stands for the aggregate index; the project's name follows after a slash."""
        return self.url + AGGREGATE

    @property
    def legacy(self) -> str:
        """What stands for the older index of all targets."""
        return self.url + LEGACY

    @property
    def bucket(self) -> str:
        """What stands for a bucket of tarballs."""
        return self.url + BUCKET

    def fail(self, where: str, kind: Kind, times: int | None = None, skip: int = 0) -> Fault:
        """Switch a fault on; see `Fault`. Where several match, the one that was switched on first strikes."""
        fault = Fault(where, kind, times, skip)
        with self._lock:
            self.faults.append(fault)
        return fault

    def heal(self) -> None:
        """Switch all faults off, and forget what was asked."""
        with self._lock:
            self.faults.clear()
            self.asked.clear()

    def files(self) -> list[str]:
        """Names of the wheels and source archives of which some bytes were handed out, sorted, each once."""
        with self._lock:
            names = {asked.path.rsplit("/", 1)[-1] for asked in self.asked if asked.sent and asked.method == "GET"}
        return sorted(name for name in names if name.endswith((".whl", ".tar.gz")))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # for the handlers, which run in threads of their own

    def strike(self, path: str) -> Kind | None:
        """The fault of this request, if it has one."""
        with self._lock:
            return next((fault.kind for fault in self.faults if fault.strikes(path)), None)

    def note(self, asked: Asked) -> None:
        with self._lock:
            self.asked.append(asked)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # a client that breaks off is no news
    block_on_close = False

    def __init__(self, standin: Standin) -> None:
        self.standin = standin
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away in the middle are what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "AmazonS3", ""
    server: _Server
    # a forgotten connection must not outlive its test
    timeout = 30

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        kind = self.server.standin.strike(path)
        if isinstance(kind, Status):
            headers = {"Retry-After": kind.retry_after} if kind.retry_after else {}
            answer = Answer(kind.code, b"refused by the stand-in\n", {"Content-Type": "text/plain", **headers})
        else:
            answer = self.server.standin.tree.answer(path, parts.query)
        body = damaged(answer.body, kind)
        status, headers = answer.status, dict(answer.headers)
        if status == 200:
            headers["ETag"] = f'"{md5(body, usedforsecurity=False).hexdigest()}"'
            # a part of another version than the client knows would be of no use to it
            known = self.headers.get("If-Range", headers["ETag"])
            status, body, more = _ranged(body, self.headers.get("Range", "") if known == headers["ETag"] else "")
            headers |= more
        pieces = list(_pieces(body, kind)) if self.command == "GET" else []
        sent = sum(map(len, pieces))
        self.server.standin.note(Asked(self.command, path, status, self.headers.get("Range", ""), parts.query, sent))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        for piece in pieces:
            time.sleep(kind.delay if isinstance(kind, Slow) else 0)
            self.wfile.write(piece)
            self.wfile.flush()
        if isinstance(kind, Cut):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Requests are remembered, not printed."""


def _pieces(body: bytes, kind: Kind | None) -> Iterator[bytes]:
    """The body as it goes out: whole, in pieces, or only its beginning."""
    body = body[: kind.after] if isinstance(kind, Cut) else body
    step = kind.piece if isinstance(kind, Slow) else len(body) or 1
    yield from (body[at : at + step] for at in range(0, len(body), step))


def _ranged(body: bytes, wanted: str) -> tuple[int, bytes, dict[str, str]]:
    """The part of a body that a Range header asks for; a header that makes no sense is ignored, as servers do."""
    match = _RANGE.fullmatch(wanted)
    if match is None:
        return 200, body, {}
    if match["tail"]:
        first, last = max(0, len(body) - int(match["tail"])), len(body) - 1
    else:
        first = int(match["first"])
        last = min(int(match["last"] or len(body) - 1), len(body) - 1)
    if first > last:
        return 416, b"", {"Content-Range": f"bytes */{len(body)}"}
    return 206, body[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(body)}"}


def paths(asked: Iterable[Asked]) -> list[str]:
    """Just the paths, in order."""
    return [item.path for item in asked]
