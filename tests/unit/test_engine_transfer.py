"""A pull and a load of which the engine says 200 first and the truth later: neither may look like success."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from strix_finetune.engine.base import EngineInfo, EngineKind
from strix_finetune.engine.client import SdkEngine
from strix_finetune.errors import EngineError

REFUSED = {"errorDetail": {"message": 'Get "http://localhost:5999/v2/": connection refused'}, "error": "it failed"}


@dataclass
class Double:
    """An engine's socket that streams `answer` to each POST; `image` is what it then has under any name."""

    address: str = ""
    answer: list[dict[str, object]] = field(default_factory=list)
    image: dict[str, object] | None = None
    asked: list[tuple[str, dict[str, str], str]] = field(default_factory=list)

    def engine(self, kind: EngineKind = "docker") -> SdkEngine:
        from docker import APIClient

        client = APIClient(base_url=self.address, version="1.41")
        return SdkEngine(client, EngineInfo(kind, "1", "1.41", self.address, rootless=False))


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    logins = {"auths": {"here.example": {"auth": base64.b64encode(b"me:secret").decode()}}}
    (tmp_path / "config.json").write_text(json.dumps(logins))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    made = Double()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            while size := int(self.rfile.readline(), 16) if self.headers.get("Transfer-Encoding") else 0:
                self.rfile.read(size + 2)
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            made.asked.append((parts.path, query, self.headers.get("X-Registry-Auth", "")))
            self.reply(200, b"".join(json.dumps(record).encode() + b"\n" for record in made.answer))

        def do_GET(self) -> None:
            self.reply(404 if made.image is None else 200, json.dumps(made.image or {"message": "no"}).encode())

        def reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        made.address = f"http://127.0.0.1:{server.server_port}"
        yield made
        server.shutdown()


@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_a_pull_that_fails_in_its_stream_raises(double: Double, kind: EngineKind) -> None:
    double.answer = [{"status": "Pulling"}, REFUSED, {"status": "and on it goes"}]
    double.image = {"Id": "sha256:1"}  # an older one of that name
    heard: list[str] = []
    words = r'could not pull localhost:5999/x:1: Get "http://localhost:5999/v2/": connection refused'
    with pytest.raises(EngineError, match=words):
        double.engine(kind).pull("localhost:5999/x:1", heard.append)
    assert heard == ["Pulling", "and on it goes"]


def test_a_pull_that_says_nothing_wrong_and_brings_nothing_raises(double: Double) -> None:
    double.answer = [{"status": "Downloaded newer image"}]
    with pytest.raises(EngineError, match="said that it pulled localhost:5999/x:1, but it is not in its store"):
        double.engine().pull("localhost:5999/x:1", lambda text: None)


def test_a_load_that_fails_in_its_stream_raises(double: Double) -> None:
    double.answer = [{"stream": "Loading"}, {"error": "no space left on device"}]
    with pytest.raises(EngineError, match="could not load an image: no space left on device"):
        double.engine().load(lambda: iter([b"archive"]))


@pytest.mark.parametrize(
    ("name", "tls"),
    [("here.example/x:1", "true"), ("localhost:5000/x:1", "false"), ("[::1]:5000/x:1", "false"), ("short:1", None)],
)
def test_podman_is_told_where_there_is_no_encryption(double: Double, name: str, tls: str | None) -> None:
    double.answer, double.image = [{"images": ["1"]}], {"Id": "1"}
    double.engine("podman").pull(name, lambda text: None)
    [(path, query, _)] = double.asked
    assert path.endswith("/libpod/images/pull")
    assert (query["reference"], query.get("tlsVerify")) == (name, tls)


@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_dockers_login_goes_along_where_there_is_one(double: Double, kind: EngineKind) -> None:
    double.image = {"Id": "sha256:1"}
    for name in ("here.example/x:1", "elsewhere.example/x:1"):
        double.engine(kind).pull(name, lambda text: None)
    one, other = (login for _, _, login in double.asked)
    assert json.loads(base64.urlsafe_b64decode(one))["username"] == "me"
    assert other == ""
