"""A registry is asked for a digest: tokens, refusals, lies."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from strix_finetune.errors import FetchFailed, InputError, LockError
from strix_finetune.netconf import NetSettings
from strix_finetune.resolve.image import digest, parse

MANIFEST = b'{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}'
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"


@dataclass
class Registry:
    host: str = ""
    answer: Callable[[str, str], tuple[int, dict[str, str], bytes]] = lambda path, token: (200, {}, MANIFEST)
    asked: list[tuple[str, str, str]] = field(default_factory=list)


@pytest.fixture
def registry() -> Iterator[Registry]:
    state = Registry()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            token = self.headers.get("Authorization", "")
            state.asked.append((self.path, token, self.headers.get("Accept", "")))
            status, headers, body = state.answer(self.path, token)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
        state.host = f"127.0.0.1:{httpd.server_port}"
        yield state
        httpd.shutdown()


def ask(registry: Registry, name: str = "library/debian:sid") -> str:
    return digest(f"{registry.host}/{name}", NetSettings())


def test_an_open_registry(registry: Registry) -> None:
    assert ask(registry) == DIGEST
    [(path, token, accept)] = registry.asked
    assert path == "/v2/library/debian/manifests/sid"
    assert token == ""
    assert accept.startswith("application/vnd.oci.image.index.v1+json, application/vnd.docker")


def test_a_registry_that_wants_an_anonymous_token(registry: Registry) -> None:
    def answer(path: str, token: str) -> tuple[int, dict[str, str], bytes]:
        if path.startswith("/token?"):
            return 200, {}, json.dumps({"token": "t0ken"}).encode()
        if token != "Bearer t0ken":
            realm = f'Bearer realm="http://{registry.host}/token",service="here",scope="repository:x:pull"'
            return 401, {"WWW-Authenticate": realm}, b"{}"
        return 200, {"Docker-Content-Digest": DIGEST}, MANIFEST

    registry.answer = answer
    assert ask(registry) == DIGEST
    assert registry.asked[1][0] == "/token?service=here&scope=repository%3Ax%3Apull"


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "says"),
    [
        (404, {}, b"{}", LockError, "has no image '127.0.0.1:"),
        (403, {}, b"{}", FetchFailed, "does not let anyone read"),
        (401, {"WWW-Authenticate": "Basic realm=x"}, b"{}", FetchFailed, "does not let anyone read"),
        (500, {}, b"{}", FetchFailed, "answers HTTP 500"),
        (200, {"Docker-Content-Digest": "sha256:" + "0" * 64}, MANIFEST, FetchFailed, "sent another manifest"),
        (200, {}, b"x" * (5 << 20), FetchFailed, "the answer is too long for a manifest"),
        (302, {"Location": "http://elsewhere.example/"}, b"", FetchFailed, "to a place that is not safe"),
        (
            401,
            {"WWW-Authenticate": 'Bearer realm="file:///etc/passwd"'},
            b"",
            FetchFailed,
            "it asks to log in at an address that is not safe",
        ),
    ],
)
def test_refusals_and_lies(
    registry: Registry, status: int, headers: dict[str, str], body: bytes, kind: type[Exception], says: str
) -> None:
    registry.answer = lambda path, token: (status, headers, body)
    with pytest.raises(kind) as caught:
        ask(registry)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("token", [b"[]", b"{}", b'{"token": 3}', b"no json"])
def test_a_token_that_is_none(registry: Registry, token: bytes) -> None:
    def answer(path: str, given: str) -> tuple[int, dict[str, str], bytes]:
        if path.startswith("/token"):
            return 200, {}, token
        return 401, {"WWW-Authenticate": f'Bearer realm="http://{registry.host}/token"'}, b""

    registry.answer = answer
    with pytest.raises(FetchFailed, match="cannot be asked for"):
        ask(registry)


def test_no_registry_there() -> None:
    with pytest.raises(FetchFailed, match=r"127.0.0.1:9 cannot be asked for .*refused"):
        digest("127.0.0.1:9/debian:sid", NetSettings())


def test_names() -> None:
    assert parse("docker.io/library/debian:sid-slim").url == (
        "https://registry-1.docker.io/v2/library/debian/manifests/sid-slim"
    )
    assert parse("registry.example:5000/a/b__c").url == "https://registry.example:5000/v2/a/b__c/manifests/latest"
    assert parse("localhost:5000/a:1").url == "http://localhost:5000/v2/a/manifests/1"
    assert parse("127.0.0.1.example/a:1").url.startswith("https://")


@pytest.mark.parametrize(
    "name", ["debian", "library/debian:sid", "x.example/Upper:1", "x.example/a:", "x.example/../a", ""]
)
def test_names_that_are_not_full(name: str) -> None:
    with pytest.raises(InputError, match="is not a full image name; write it as host/name:tag"):
        parse(name)
