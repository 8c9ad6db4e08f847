"""Which engine is taken, against small HTTP servers on real unix sockets."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from strix_finetune.engine import podman_service, select
from strix_finetune.engine.select import Address, connect, explicit_address, socket_path, usual_addresses
from strix_finetune.errors import EngineError, EngineUnavailable

DOCKER = {"Version": "27.1", "ApiVersion": "1.46", "Components": [{"Name": "Engine"}, {"Name": "containerd"}]}
PODMAN = {"Version": "5.2", "ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}, {"Name": "Conmon"}]}

Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """A function that serves an engine's /version and /info on a socket in tmp_path, and returns its path."""
    servers: list[socketserver.ThreadingUnixStreamServer] = []

    def start(
        name: str, version: dict[str, Any], options: tuple[str, ...] = (), info: dict[str, Any] | None = None
    ) -> str:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                answer = version if self.path.endswith("/version") else {"SecurityOptions": options, **(info or {})}
                body = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

            def address_string(self) -> str:
                return "unix"

        path = str(tmp_path / name)
        server = socketserver.ThreadingUnixStreamServer(path, Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return path

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def bare_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine in any usual place and no podman program."""
    monkeypatch.setattr(select, "DOCKER_SOCKET", str(tmp_path / "nothing" / "docker.sock"))
    monkeypatch.setattr(select, "PODMAN_SOCKET", str(tmp_path / "nothing" / "podman.sock"))
    monkeypatch.setattr(podman_service, "available", lambda env: False)


def test_docker_host_is_taken_and_asked_what_it_is(serve: Serve) -> None:
    url = f"unix://{serve('a.sock', PODMAN, ('name=seccomp', 'name=rootless'))}"
    engine = connect("auto", {"DOCKER_HOST": url})
    assert (engine.info.kind, engine.info.version, engine.info.url) == ("podman", "5.2", url)
    assert engine.info.rootless
    engine.close()


@pytest.mark.parametrize("rootless", [True, False])
def test_podman_s_own_word_for_rootless(serve: Serve, rootless: bool) -> None:
    engine = connect("auto", {"DOCKER_HOST": f"unix://{serve('a.sock', PODMAN, info={'Rootless': rootless})}"})
    assert engine.info.rootless is rootless
    engine.close()


def test_the_kind_comes_from_the_api_not_from_the_name_of_the_socket(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "DOCKER_SOCKET", serve("docker.sock", PODMAN))
    engine = connect("auto", {})
    assert engine.info.kind == "podman"
    engine.close()
    with pytest.raises(EngineUnavailable, match="Docker is not running"):
        connect("docker", {})


def test_an_address_of_the_other_kind_is_refused_by_name(serve: Serve) -> None:
    with pytest.raises(EngineUnavailable, match="DOCKER_HOST points at podman, but docker was asked for"):
        connect("docker", {"DOCKER_HOST": f"unix://{serve('a.sock', PODMAN)}"})


def test_container_host_is_podman_s(serve: Serve) -> None:
    docker, podman = f"unix://{serve('d.sock', DOCKER)}", f"unix://{serve('p.sock', PODMAN)}"
    env = {"DOCKER_HOST": docker, "CONTAINER_HOST": podman}
    for kind, expected in (("auto", "docker"), ("docker", "docker"), ("podman", "podman")):
        engine = connect(kind, env)  # type: ignore[arg-type]
        assert engine.info.kind == expected
        engine.close()


def test_a_wrong_docker_host_is_never_passed_over(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(select, "DOCKER_SOCKET", serve("docker.sock", DOCKER))
    with pytest.raises(EngineUnavailable, match=r"no engine socket at .*correct or unset DOCKER_HOST"):
        connect("auto", {"DOCKER_HOST": f"unix://{tmp_path}/missing.sock"})


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"DOCKER_HOST": "unix:///etc/passwd"}, "is no socket; correct DOCKER_HOST"),
        ({"DOCKER_HOST": "ssh://elsewhere"}, "ssh needs a Python package"),
        ({"DOCKER_HOST": "tcp://127.0.0.1:1", "DOCKER_TLS_VERIFY": "1"}, "TLS connection .* failed; check DOCKER_TLS"),
    ],
)
def test_what_is_wrong_with_an_address_is_told(
    env: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "_has_paramiko", lambda: False)
    with pytest.raises(EngineUnavailable, match=words):
        connect("auto", env)


def test_a_web_server_is_no_engine(tmp_path: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        with pytest.raises(EngineUnavailable, match="is not a container engine; correct DOCKER_HOST"):
            connect("auto", {"DOCKER_HOST": f"tcp://127.0.0.1:{server.server_address[1]}"})
        server.shutdown()


@pytest.mark.parametrize("url", ["ftp://host", "nonsense", "tcp://", "unix://"])
def test_what_is_no_address_is_told_so(url: str) -> None:
    with pytest.raises(EngineError, match="DOCKER_HOST"):
        connect("auto", {"DOCKER_HOST": url})


def test_something_else_behind_the_address_is_told_so(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(EngineError, match=r"127\.0\.0\.1.*is not a container engine; correct DOCKER_HOST"):
            connect("auto", {"DOCKER_HOST": f"tcp://127.0.0.1:{listener.getsockname()[1]}"})
        thread.join()


def test_a_dead_socket_is_passed_over_when_another_engine_runs(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(dead))
    monkeypatch.setattr(select, "DOCKER_SOCKET", str(dead))
    with pytest.raises(EngineUnavailable, match="no container engine is running at"):
        connect("auto", {})
    (tmp_path / "run").mkdir()
    path = Path(serve("live.sock", DOCKER))
    path.rename(tmp_path / "run" / "docker.sock")
    engine = connect("auto", {"XDG_RUNTIME_DIR": str(tmp_path / "run")})
    assert engine.info.kind == "docker"
    engine.close()


def test_without_any_engine_the_sentence_says_how_to_get_one() -> None:
    with pytest.raises(EngineUnavailable, match=r"no container engine is running.*start it"):
        connect("auto", {})
    with pytest.raises(EngineUnavailable, match="Podman is not installed"):
        connect("podman", {})


def test_the_cli_s_current_context_counts(tmp_path: Path) -> None:
    from hashlib import sha256

    meta = tmp_path / "contexts" / "meta" / sha256(b"desk").hexdigest()
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Endpoints": {"docker": {"Host": "unix:///desk.sock"}}}))
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "desk"}))
    env = {"DOCKER_CONFIG": str(tmp_path)}
    assert explicit_address("auto", env) == Address("unix:///desk.sock", "the docker context 'desk'")
    assert explicit_address("podman", env) is None
    assert explicit_address("auto", env | {"DOCKER_HOST": "tcp://a:1"}) == Address("tcp://a:1", "DOCKER_HOST")
    (tmp_path / "config.json").write_text("not json")
    assert explicit_address("auto", env) is None


def test_the_fast_path_s_socket(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    assert socket_path({}) is None
    path = serve("docker.sock", DOCKER)
    assert socket_path({"DOCKER_HOST": f"unix://{path}"}) == path
    assert socket_path({"DOCKER_HOST": "tcp://host:2375"}) is None
    monkeypatch.setattr(select, "DOCKER_SOCKET", path)
    assert socket_path({}) == path


def test_root_s_podman_socket_is_for_root_only(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    path = serve("podman.sock", PODMAN)
    monkeypatch.setattr(select, "PODMAN_SOCKET", path)
    assert usual_addresses("auto", {}, root=True) == [Address(f"unix://{path}")]
    assert usual_addresses("auto", {}, root=False) == []


def test_a_socket_without_permission_is_told_so(serve: Serve) -> None:
    path = serve("locked.sock", DOCKER)
    connect("auto", {"DOCKER_HOST": f"unix://{path}"}).close()  # what has to be imported is now
    Path(path).chmod(0)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)  # root may connect to any socket
    try:
        with pytest.raises(EngineUnavailable, match="no permission to use the container engine"):
            connect("auto", {"DOCKER_HOST": f"unix://{path}"})
    finally:
        os.seteuid(before)
