"""The memo of a build that had nothing to do: when it answers, and when it does not."""

from __future__ import annotations

import http.server
import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strix_finetune import fast

TAGS = {"localhost/strix-finetune/a:x-1": "sha256:1", "localhost/strix-finetune:x": "sha256:1"}
IMAGES = [{"Id": "sha256:1", "RepoTags": list(TAGS)}, {"Id": "sha256:2", "RepoTags": None}]
ARGUMENTS = ["build", "--target", "cpu"]


class FakeSocket:
    """Answers each connection to a UNIX socket with `answer`: bytes, or a function that gets the connection."""

    def __init__(self, path: Path, answer: bytes | Callable[[socket.socket], None]) -> None:
        self.path, self.answer, self.asked = path, answer, list[bytes]()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                try:
                    self.asked.append(connection.recv(1 << 16))
                    if callable(self.answer):
                        self.answer(connection)
                    else:
                        connection.sendall(self.answer)
                except OSError:
                    continue

    def close(self) -> None:
        self._listener.close()


def answer(images: object, status: str = "200 OK") -> bytes:
    return f"HTTP/1.0 {status}\r\nContent-Type: application/json\r\n\r\n{json.dumps(images)}".encode()


class Place:
    """A home, definitions and an engine's socket."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.patch = root, monkeypatch
        self.images = root / "images"
        self.images.mkdir()
        (self.images / "a").write_text("a")
        (self.images / "deep").mkdir()
        (self.images / "deep" / "b").write_text("b")
        monkeypatch.setenv("HOME", str(root / "home"))
        for name in fast._VARIABLES[1:]:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.chdir(root)
        self.socket = FakeSocket(root / "s", answer(IMAGES))
        self.settle()

    def settle(self) -> None:
        """As if the files had been there for a while when the process began."""
        self.patch.setattr(fast, "_STARTED", time.time_ns() + 3 * 10**9)

    def remember(self, arguments: list[str] = ARGUMENTS, *, as_json: bool = False, tags: dict[str, str] = TAGS) -> None:
        roots = [str(self.images), str(self.root / "missing")]
        output = '{"seconds": @seconds@}\n' if as_json else "up to date in @seconds@ s\n"
        fast.remember(arguments, roots, str(self.socket.path), tags, output, as_json=as_json)

    @property
    def memos(self) -> list[Path]:
        return list((self.root / "home/.cache/strix-finetune/noop").glob("*"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place(tmp_path, monkeypatch)
    yield made
    made.socket.close()


def test_the_same_command_is_answered_from_the_memo(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert fast.repeat(ARGUMENTS) is None
    place.remember()
    assert fast.repeat(ARGUMENTS) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("up to date in 0.")
    assert place.socket.asked[-1].startswith(b"GET /images/json?filters=%7B%22label%22")
    # one file, and nothing half-written beside it
    assert len(place.memos) == 1


def test_json_goes_to_standard_output(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.remember(as_json=True)
    assert fast.repeat(ARGUMENTS) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] < 5


def test_only_build_is_answered(place: Place) -> None:
    place.remember(["plan"])
    assert fast.repeat(["plan"]) is None
    assert fast.repeat([]) is None


def touch(path: str, text: str = "new") -> Callable[[Place], object]:
    return lambda place: (place.root / path).write_text(text)


def keep_time(place: Place) -> None:
    """Another content of the same length under the old time, as `cp -p` or a careful tool leaves it."""
    state = (place.images / "a").stat()
    (place.images / "a").write_text("z")
    os.utime(place.images / "a", ns=(state.st_atime_ns, state.st_mtime_ns))


def replaced(place: Place) -> None:
    (place.images / "c").write_text("a")
    (place.images / "c").replace(place.images / "a")


@pytest.mark.parametrize(
    "change",
    [
        touch("images/a"),
        touch("images/deep/b"),
        touch("images/new"),
        touch("images/deep/new"),
        touch("missing"),
        keep_time,
        replaced,
        lambda place: (place.images / "deep/b").unlink(),
        lambda place: (place.images / "a").rename(place.images / "c"),
        lambda place: (place.images / "a").chmod(0o755),
        lambda place: (place.images / "link").symlink_to("a"),
        lambda place: (place.images / "deep/empty").mkdir(),
        lambda place: os.utime(place.images / "a", (1, 1)),
    ],
)
def test_a_changed_file_is_a_miss(place: Place, change: Callable[[Place], object]) -> None:
    place.remember()
    assert fast.repeat(ARGUMENTS) == 0
    change(place)
    assert fast.repeat(ARGUMENTS) is None


def test_compiled_python_is_no_change(place: Place) -> None:
    (place.images / "__pycache__").mkdir()
    place.remember()
    (place.images / "__pycache__/x.pyc").write_text("x")
    assert fast.repeat(ARGUMENTS) == 0


@pytest.mark.parametrize(
    "images",
    [
        [],
        [{"Id": "sha256:1", "RepoTags": [next(iter(TAGS))]}],
        [{"Id": "sha256:3", "RepoTags": list(TAGS)}],
        [{"Id": "sha256:1", "RepoTags": []}],
    ],
)
def test_a_name_that_is_gone_or_moved_is_a_miss(place: Place, images: object) -> None:
    place.remember()
    place.socket.answer = answer(images)
    assert fast.repeat(ARGUMENTS) is None


@pytest.mark.parametrize(
    "arguments",
    [["build", "cpu", "--target"], ["build"], ["build", "--target", "cpu", "--json"], ["build", "--target=cpu"]],
)
def test_other_arguments_are_another_memo(place: Place, arguments: list[str]) -> None:
    place.remember()
    assert fast.repeat(arguments) is None


@pytest.mark.parametrize("name", fast._VARIABLES)
def test_another_environment_is_another_memo(place: Place, name: str) -> None:
    place.remember()
    place.patch.setenv(name, str(place.root / "other"))
    assert fast.repeat(ARGUMENTS) is None


def test_variables_that_choose_nothing_do_not_matter(place: Place) -> None:
    place.remember()
    place.patch.setenv("HTTPS_PROXY", "http://x")
    place.patch.setenv("LANG", "tr_TR.UTF-8")
    assert fast.repeat(ARGUMENTS) == 0


def test_another_folder_is_another_memo(place: Place) -> None:
    place.remember()
    place.patch.chdir(place.images)
    assert fast.repeat(ARGUMENTS) is None


def test_another_docker_context_is_a_miss(place: Place) -> None:
    place.remember()
    config = place.root / "home/.docker/config.json"
    config.parent.mkdir(parents=True)
    config.write_text('{"currentContext": "other"}')
    assert fast.repeat(ARGUMENTS) is None


def test_an_engine_that_is_gone(place: Place) -> None:
    place.remember()
    place.socket.path.unlink()
    assert fast.repeat(ARGUMENTS) is None


# a memo may only be left when nobody can have changed anything behind its back


def test_a_file_that_changed_during_the_build_leaves_no_memo(place: Place) -> None:
    place.patch.setattr(fast, "_STARTED", time.time_ns())
    place.remember()
    assert place.memos == []


def test_a_file_that_changed_just_before_leaves_no_memo(place: Place) -> None:
    newest = max(fast.signature(str(path))[2] for path in place.images.rglob("*"))
    place.patch.setattr(fast, "_STARTED", newest + fast._COARSE)
    place.remember()
    assert place.memos == []
    place.patch.setattr(fast, "_STARTED", newest + fast._COARSE + 1)
    place.remember()
    assert len(place.memos) == 1


def test_a_time_that_was_set_back_does_not_help(place: Place) -> None:
    place.patch.setattr(fast, "_STARTED", time.time_ns())
    os.utime(place.images / "a", (1, 1))
    place.remember()
    assert place.memos == []


def test_a_time_in_the_future_does_not_hinder(place: Place) -> None:
    os.utime(place.images / "a", (2**33, 2**33))
    place.remember()
    assert fast.repeat(ARGUMENTS) == 0


def test_files_without_times_are_compared_by_their_content(place: Place) -> None:
    virtual = place.root / "sys"
    (virtual / "nodes/0").mkdir(parents=True)
    (virtual / "nodes/0/properties").write_text("gfx 110501\n")
    place.patch.setattr(fast, "_VIRTUAL", f"{virtual}/")

    def remember() -> None:
        fast.remember(ARGUMENTS, [str(virtual / "nodes")], str(place.socket.path), TAGS, "", as_json=False)

    remember()
    os.utime(virtual / "nodes/0/properties", (1, 1))
    os.utime(virtual / "nodes", (1, 1))
    assert fast.repeat(ARGUMENTS) == 0
    (virtual / "nodes/0/properties").write_text("gfx 110001\n")
    assert fast.repeat(ARGUMENTS) is None
    remember()
    assert fast.repeat(ARGUMENTS) == 0
    (virtual / "nodes/1").mkdir()
    assert fast.repeat(ARGUMENTS) is None


def test_a_memo_that_cannot_be_written_is_no_fault(place: Place) -> None:
    (place.root / "home").mkdir()
    (place.root / "home/.cache").write_text("a file where a folder should be")
    place.remember()
    place.patch.setenv("XDG_CACHE_HOME", "/dev/full")
    place.remember()


def test_a_full_disk_leaves_nothing_half_written(place: Place) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    place.patch.setattr(fast.json, "dump", full)
    place.remember()
    assert place.memos == []


def test_a_folder_that_was_removed_under_us(place: Place) -> None:
    gone = place.root / "gone"
    gone.mkdir()
    place.patch.chdir(gone)
    gone.rmdir()
    place.remember()
    assert fast.repeat(ARGUMENTS) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"3", b"null", b"\xff\xfe", b'"x"', b"[" * 100_000, b"{}", b'{"format": 3}']
    + [
        json.dumps({"format": 3, "files": [], "socket": "SOCKET", "tags": TAGS, "output": "x", "json": False, **change})
        for change in (
            {"format": 2},
            {"files": 3},
            {"files": [[]]},
            {"files": [[None, 1, 1, 1, 1]]},
            {"files": [["a\0b", 1, 1, 1, 1]]},
            {"files": ["/"]},
            {"socket": 3},
            {"socket": None},
            {"socket": "/nowhere"},
            {"socket": "x" * 200},
            {"tags": {}},
            {"tags": []},
            {"tags": "x"},
            {"tags": None},
            {"output": 3},
            {"output": None},
        )
    ],
)  # fmt: skip
def test_a_damaged_memo_is_no_memo(place: Place, content: bytes | str, capsys: pytest.CaptureFixture[str]) -> None:
    place.remember()
    (memo,) = place.memos
    text = content if isinstance(content, bytes) else content.replace("SOCKET", str(place.socket.path)).encode()
    memo.write_bytes(text)
    assert fast.repeat(ARGUMENTS) is None
    assert capsys.readouterr() == ("", "")
    memo.unlink()
    memo.mkdir()
    assert fast.repeat(ARGUMENTS) is None


BROKEN: dict[str, bytes | Callable[[socket.socket], None]] = {
    "nothing": b"",
    "no http": b"hello",
    "an error": answer(IMAGES, "500 Internal Server Error"),
    "no json": b"HTTP/1.0 200 OK\r\n\r\n<html>",
    "cut off": answer(IMAGES)[:-5],
    "an object": answer({"Id": 1}),
    "a number": answer(3),
    "null": answer(None),
    "strings": answer(["a", "b"]),
    "no id": answer([{"RepoTags": list(TAGS)}]),
    "no tags": answer([{"Id": "sha256:1"}]),
    "tags of another kind": answer([{"Id": "sha256:1", "RepoTags": 3}]),
    "deep": b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 200_000,
    "bytes": b"HTTP/1.0 200 OK\r\n\r\n\xff\xfe",
    "a status in the body": b"HTTP/1.0 404 Not Found\r\nX: HTTP/1.0 200 OK\r\n\r\n" + json.dumps(IMAGES).encode(),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_engine_is_left_to_the_driver(place: Place, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    place.remember()
    place.socket.answer = BROKEN[kind]
    assert fast.repeat(ARGUMENTS) is None
    assert capsys.readouterr() == ("", "")


def test_an_engine_that_says_nothing_or_never_ends(place: Place) -> None:
    place.patch.setattr(fast, "_PATIENCE", 0.2)
    place.remember()
    silent = threading.Event()
    place.socket.answer = lambda connection: silent.wait(5) and None
    began = time.monotonic()
    assert fast.repeat(ARGUMENTS) is None
    silent.set()

    def drip(connection: socket.socket) -> None:
        for _ in range(100):
            connection.sendall(b" ")
            time.sleep(0.05)

    place.socket.answer = drip
    assert fast.repeat(ARGUMENTS) is None
    assert time.monotonic() - began < 4.5

    place.patch.setattr(fast, "_ANSWER_LIMIT", 1000)
    place.socket.answer = answer(IMAGES) + b" " * 2000
    assert fast.repeat(ARGUMENTS) is None


def test_a_real_http_server_is_understood(place: Place) -> None:
    """Keep-alive and headers as a real server sends them."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = json.dumps(IMAGES).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "x"

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    path = place.root / "real"
    with socketserver.UnixStreamServer(str(path), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        fast.remember(ARGUMENTS, [str(place.images)], str(path), TAGS, "ok", as_json=False)
        assert fast.repeat(ARGUMENTS) == 0
        server.shutdown()


# as a process: what is imported, what is printed


def process(place: Place, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTEST"))}
    command = [sys.executable, *arguments]
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        command, capture_output=True, text=True, env=environment, cwd=place.root, timeout=60, **options
    )


HEAVY = ("click", "jinja2", "pydantic", "docker", "rich", "requests", "http.client", "dataclasses", "typing", "pathlib")


def test_nothing_heavy_is_imported(place: Place) -> None:
    place.remember()
    done = process(place, "-X", "importtime", "-m", "strix_finetune", *ARGUMENTS)
    assert done.returncode == 0
    imported = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "strix_finetune.fast" in imported
    assert "up to date in" in done.stderr
    loaded_by_the_interpreter = {
        line.rsplit("|", 1)[1].strip()
        for line in process(place, "-X", "importtime", "-c", "import runpy").stderr.splitlines()
    }
    assert not imported & set(HEAVY) - loaded_by_the_interpreter
    ours = {name for name in imported if name.startswith("strix_finetune")}
    assert ours == {"strix_finetune", "strix_finetune.fast"}


def test_a_reader_that_has_gone(place: Place) -> None:
    place.remember(as_json=True)
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "strix_finetune", *ARGUMENTS]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, cwd=place.root, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")
