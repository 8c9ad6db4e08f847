"""A registry in this process, for tests: the distribution API as it is specified, with faults to order.

Unlike the real one of the engine tests it goes on with uploads that were cut, and asks for tokens.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

_UPLOAD = re.compile(r"/v2/(?P<repo>.+)/blobs/uploads/(?P<id>\d*)")
_BLOB = re.compile(r"/v2/(?P<repo>.+)/blobs/(?P<digest>sha256:[0-9a-f]{64})")
_MANIFEST = re.compile(r"/v2/(?P<repo>.+)/manifests/(?P<ref>[^/]+)")
_TAGS = re.compile(r"/v2/(?P<repo>.+)/tags/list")
# whoever asks gets a token
ANYBODY = ("",)


@dataclass
class Double:
    """The state of the registry. `faults`: each is asked before a request is answered, and may answer it itself.

    `login`: who gets a token, without which nothing is answered; None where all is open.
    """

    address: str = ""
    blobs: dict[str, bytes] = field(default_factory=dict)
    links: set[tuple[str, str]] = field(default_factory=set)
    manifests: dict[tuple[str, str], tuple[str, bytes]] = field(default_factory=dict)
    uploads: dict[str, bytearray] = field(default_factory=dict)
    faults: list[Callable[[Handler], bool]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    sent: int = 0
    login: tuple[str, ...] | None = None
    realm: str = ""
    tokens: set[str] = field(default_factory=set)
    # bytes of a request's body after which the connection is cut, once each; what came by then is kept or not
    cuts: list[int] = field(default_factory=list)
    keeps: bool = True
    # bytes of an answer's body after which the connection is cut, once each
    answer_cuts: list[int] = field(default_factory=list)

    def requests(self, method: str) -> list[str]:
        return [line.partition(" ")[2] for line in self.log if line.startswith(f"{method} ")]

    def tags(self, repo: str) -> set[str]:
        return {ref for held, ref in self.manifests if held == repo and not ref.startswith("sha256:")}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # headers and body are two writes; waiting for the first to be acknowledged costs 40 ms each time
    disable_nagle_algorithm = True
    double: Double

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.double.answer_cuts and len(body) > self.double.answer_cuts[0]:
            self.wfile.write(body[: self.double.answer_cuts.pop(0)])
            self.cut()
            return
        self.wfile.write(body)

    def cut(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(2)

    def body(self) -> bytes | None:
        """What is sent; None where the connection was cut in the middle, with what came by then in `self.partial`."""
        size = int(self.headers.get("Content-Length") or 0)
        cuts = self.double.cuts
        if cuts and size > cuts[0]:
            self.partial = self.rfile.read(cuts.pop(0))
            self.double.sent += len(self.partial)
            self.cut()
            return None
        content = self.rfile.read(size)
        self.double.sent += size
        return content

    def handle_any(self) -> None:
        self.double.log.append(f"{self.command} {self.path}")
        parts = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        for fault in list(self.double.faults):
            if fault(self):
                return None
        if parts.path == "/token":
            return self.token()
        if (
            self.double.login
            and self.headers.get("Authorization", "").removeprefix("Bearer ") not in self.double.tokens
        ):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            realm = self.double.realm or f"{self.double.address}/token"
            return self.answer(401, WWW_Authenticate=f'Bearer realm="{realm}",service="double"')
        for pattern, name in ((_UPLOAD, "upload"), (_BLOB, "blob"), (_MANIFEST, "manifest"), (_TAGS, "tags")):
            found = pattern.fullmatch(parts.path)
            if found:
                getattr(self, f"{name}_{self.command.lower()}")(**found.groupdict())
                return None
        return self.answer(404)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

    def token(self) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Basic ")
        if base64.b64decode(given).decode() != ":".join(self.double.login or ()):
            return self.answer(401, b'{"errors": [{"message": "wrong password"}]}')
        token = f"token{len(self.double.tokens)}"
        self.double.tokens.add(token)
        return self.answer(200, json.dumps({"token": token, "expires_in": 300}).encode())

    def upload_post(self, repo: str, id: str) -> None:
        self.body()
        if (self.query.get("from", ""), self.query.get("mount", "")) in self.double.links:
            self.double.links.add((repo, self.query["mount"]))
            return self.answer(201, Location=f"/v2/{repo}/blobs/{self.query['mount']}")
        number = str(len(self.double.uploads) + 1)
        self.double.uploads[number] = bytearray()
        return self.answer(202, Location=f"/v2/{repo}/blobs/uploads/{number}?state=x")

    def upload_get(self, repo: str, id: str) -> None:
        if id not in self.double.uploads:
            return self.answer(404)
        return self.reached(204, repo, id)

    def reached(self, status: int, repo: str, id: str) -> None:
        held = max(len(self.double.uploads[id]) - 1, 0)
        self.answer(status, Location=f"/v2/{repo}/blobs/uploads/{id}?state=x", Range=f"0-{held}")

    def take(self, id: str) -> bool:
        content = self.body()
        if content is None:
            if self.double.keeps:
                self.double.uploads[id] += self.partial
            else:
                del self.double.uploads[id]
            return False
        self.double.uploads[id] += content
        return True

    def upload_patch(self, repo: str, id: str) -> None:
        begin = int(self.headers["Content-Range"].partition("-")[0])
        if id not in self.double.uploads or begin != len(self.double.uploads[id]):
            return self.answer(416)
        return self.reached(202, repo, id) if self.take(id) else None

    def upload_put(self, repo: str, id: str) -> None:
        if id not in self.double.uploads:
            return self.answer(404)
        if not self.take(id):
            return None
        content = bytes(self.double.uploads.pop(id))
        digest = f"sha256:{sha256(content).hexdigest()}"
        if digest != self.query["digest"]:
            return self.answer(400, b'{"errors": [{"code": "DIGEST_INVALID", "message": "digest invalid"}]}')
        self.double.blobs[digest] = content
        self.double.links.add((repo, digest))
        return self.answer(201)

    def blob_head(self, repo: str, digest: str) -> None:
        self.blob_get(repo, digest)

    def blob_get(self, repo: str, digest: str) -> None:
        if (repo, digest) not in self.double.links:
            return self.answer(404)
        content = self.double.blobs[digest]
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if not found:
            return self.answer(200, content)
        begin, end = int(found[1]), len(content) - 1
        return self.answer(206, content[begin:], Content_Range=f"bytes {begin}-{end}/{len(content)}")

    def manifest_head(self, repo: str, ref: str) -> None:
        self.manifest_get(repo, ref)

    def manifest_get(self, repo: str, ref: str) -> None:
        held = self.double.manifests.get((repo, ref))
        if held is None:
            return self.answer(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}')
        return self.answer(200, held[1], Content_Type=held[0])

    def manifest_put(self, repo: str, ref: str) -> None:
        content = self.body()
        if content is None:
            return None
        told = json.loads(content)
        blobs = [told["config"]["digest"], *(row["digest"] for row in told["layers"])] if "layers" in told else []
        if any((repo, digest) not in self.double.links for digest in blobs):
            return self.answer(404, b'{"errors": [{"message": "blob unknown to registry"}]}')
        held = (self.headers["Content-Type"], content)
        self.double.manifests[repo, ref] = self.double.manifests[repo, f"sha256:{sha256(content).hexdigest()}"] = held
        return self.answer(201)

    def manifest_delete(self, repo: str, ref: str) -> None:
        gone = self.double.manifests.pop((repo, ref), None)
        self.double.manifests = {name: held for name, held in self.double.manifests.items() if held != gone}
        self.answer(202 if gone else 404)

    def tags_get(self, repo: str) -> None:
        tags = sorted(self.double.tags(repo))
        after = self.query.get("last", "")
        rest = [tag for tag in tags if tag > after]
        page = rest[:2]
        headers = {"Link": f'</v2/{repo}/tags/list?n=2&last={page[-1]}>; rel="next"'} if rest[2:] else {}
        self.answer(200, json.dumps({"name": repo, "tags": page}).encode(), **headers)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no fault of a test."""


@contextmanager
def double() -> Iterator[Double]:
    """A registry on a free port of the loopback; `address` begins with http://."""
    made = Double()
    server = _Server(("127.0.0.1", 0), type("Own", (Handler,), {"double": made}))
    made.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


def times(count: int, status: int, match: str = "", **headers: str) -> Callable[[Handler], bool]:
    """A fault: the first `count` requests whose line has `match` are answered with a status."""
    left = [count]

    def fault(handler: Handler) -> bool:
        if left[0] <= 0 or match not in f"{handler.command} {handler.path}":
            return False
        left[0] -= 1
        handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        handler.answer(status, b'{"errors": [{"message": "as ordered"}]}', **headers)
        return True

    return fault
