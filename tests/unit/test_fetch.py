"""Downloads against a server that cuts, lies, refuses and dawdles."""

from __future__ import annotations

import hashlib
import http.server
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from strix_finetune import download
from strix_finetune.errors import FetchFailed, InputError, WorkError
from strix_finetune.fetch import Found, Gone, discover, fetch, resume
from strix_finetune.netconf import NetSettings

BODY = bytes(range(256)) * 4096  # 1 MiB
SHA = hashlib.sha256(BODY).hexdigest()
Answer = Callable[[http.server.BaseHTTPRequestHandler, int], None]


@dataclass
class Server:
    """Answers the n-th request with `answers[n]`, and the later ones with the last of them."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            state.ranges.append(self.headers.get("Range", ""))
            begin = int(state.ranges[-1].removeprefix("bytes=").rstrip("-") or 0)
            self.close_connection = True
            state.answers[min(len(state.ranges), len(state.answers)) - 1](self, begin)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Quiet(http.server.ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A client that hangs up in the middle is what some tests are about."""

    with Quiet(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
        state.url = f"http://127.0.0.1:{httpd.server_port}/files/a.tar.gz?token=hidden"
        yield state
        httpd.shutdown()


def send(
    status: int = 200, *, upto: int | None = None, body: bytes = BODY, length: int | None = None, **headers: str
) -> Answer:
    """Serve `body` from where the request asks; stop after `upto` bytes of it; claim `length`."""

    def answer(request: http.server.BaseHTTPRequestHandler, begin: int) -> None:
        code = 206 if status == 200 and begin else status
        request.send_response(code)
        if code == 206:
            request.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", str(len(body) - begin if length is None else length))
        request.end_headers()
        request.wfile.write(body[begin : begin + upto] if upto is not None else body[begin:])

    return answer


def get(server: Server, folder: Path, *, sha: str = SHA, size: int = len(BODY)) -> tuple[Path, list[float]]:
    waits: list[float] = []
    path = fetch(server.url, sha, size, folder, NetSettings(), sleep=waits.append)
    return path, waits


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    server.answers = [send()]
    seen: list[tuple[int, int]] = []
    path = fetch(
        server.url,
        SHA,
        len(BODY),
        tmp_path / "a",
        NetSettings(),
        on_progress=lambda done, size: seen.append((done, size)),
    )
    assert path == tmp_path / "a" / SHA
    assert path.read_bytes() == BODY
    assert seen[-1] == (len(BODY), len(BODY))
    assert get(server, tmp_path / "a") == (path, [])
    assert server.ranges == [""]


def test_a_file_that_was_harmed_in_the_cache_is_fetched_again(server: Server, tmp_path: Path) -> None:
    server.answers = [send()]
    (tmp_path / SHA).write_bytes(b"x" * len(BODY))
    assert get(server, tmp_path)[0].read_bytes() == BODY
    assert server.ranges == [""]


def test_a_cut_is_resumed_where_it_happened(server: Server, tmp_path: Path) -> None:
    server.answers = [send(upto=300_000), send(upto=200_000), send()]
    path, waits = get(server, tmp_path)
    assert path.read_bytes() == BODY
    assert server.ranges == ["", "bytes=300000-", "bytes=500000-"]
    assert len(waits) == 2
    assert max(waits) <= 0.5


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    def whole(request: http.server.BaseHTTPRequestHandler, begin: int) -> None:
        send()(request, 0)

    server.answers = [send(upto=300_000), whole]
    assert get(server, tmp_path)[0].read_bytes() == BODY


def test_a_server_that_sends_another_part_is_asked_for_the_whole(server: Server, tmp_path: Path) -> None:
    def wrong(request: http.server.BaseHTTPRequestHandler, begin: int) -> None:
        send(status=206, Content_Range=f"bytes 0-{len(BODY) - 1}/{len(BODY)}")(request, 0)

    server.answers = [send(upto=300_000), wrong, send()]
    assert get(server, tmp_path)[0].read_bytes() == BODY
    assert server.ranges == ["", "bytes=300000-", ""]


def test_a_part_that_is_not_there_is_asked_for_anew(server: Server, tmp_path: Path) -> None:
    server.answers = [send(upto=300_000), send(416, body=b""), send()]
    assert get(server, tmp_path)[0].read_bytes() == BODY
    assert server.ranges[2] == ""


def test_a_file_that_changes_between_two_parts_gets_one_more_chance(server: Server, tmp_path: Path) -> None:
    other = b"\1" * len(BODY)
    server.answers = [send(body=other, upto=300_000), send(), send()]
    assert get(server, tmp_path)[0].read_bytes() == BODY
    assert server.ranges == ["", "bytes=300000-", ""]


@pytest.mark.parametrize(
    ("answer", "requests", "says"),
    [
        (send(body=b"\1" * len(BODY)), 1, "a.tar.gz is not the file that the lock names: its sha256 is "),
        (send(body=BODY[:-5]), 1, f"has {len(BODY) - 5} bytes there, and the lock says {len(BODY)}"),
        (send(body=BODY + b"x"), 1, f"has {len(BODY) + 1} bytes there, and the lock says {len(BODY)}"),
        (send(404, body=b"no"), 1, "the server answers HTTP 404 for http://127.0.0.1"),
        (send(403, body=b"no"), 1, "the server answers HTTP 403"),
        (send(500, body=b"no"), 5, "could not be downloaded (HTTP 500, 0 of 1048576 bytes came); check the network"),
        (send(429, body=b"no"), 5, "could not be downloaded (HTTP 429"),
        (send(upto=0), 5, "could not be downloaded (the connection was cut, 0 of 1048576 bytes came)"),
        (send(302, body=b"", Location="file:///etc/passwd"), 1, "redirects to a place that is not safe"),
        (send(302, body=b"", Location="http://files.example/a"), 1, "redirects to a place that is not safe"),
    ],
)
def test_what_cannot_be_had_leaves_nothing(
    server: Server, tmp_path: Path, answer: Answer, requests: int, says: str
) -> None:
    server.answers = [answer]
    with pytest.raises(FetchFailed) as caught:
        get(server, tmp_path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hidden" not in str(caught.value)
    assert len(server.ranges) == requests
    assert list(tmp_path.iterdir()) == []


def test_a_body_without_length_that_never_ends_is_stopped(server: Server, tmp_path: Path) -> None:
    sent = 0

    def endless(request: http.server.BaseHTTPRequestHandler, begin: int) -> None:
        nonlocal sent
        request.send_response(200)
        request.end_headers()
        try:
            while sent < 1 << 30:
                sent += request.wfile.write(BODY)
        except OSError:
            pass

    server.answers = [endless]
    with pytest.raises(FetchFailed, match="is longer than the 1048576 bytes that the lock says"):
        get(server, tmp_path)
    assert sent < 64 << 20
    assert list(tmp_path.iterdir()) == []


def test_the_server_says_how_long_to_wait(server: Server, tmp_path: Path) -> None:
    server.answers = [
        send(429, body=b"", Retry_After="7"),
        send(503, body=b"", Retry_After="100000"),
        send(503, body=b"", Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"),
        send(503, body=b"", Retry_After="soon"),
        send(),
    ]
    path, waits = get(server, tmp_path)
    assert path.read_bytes() == BODY
    assert waits[:3] == [7.0, 60.0, 0.0]
    assert 4.0 <= waits[3] <= 8.0


def test_progress_is_patience(server: Server, tmp_path: Path) -> None:
    """A line that cuts after every 64 KiB still gets there; the attempts that bring something do not count."""
    server.answers = [send(upto=65536)]
    path, waits = get(server, tmp_path)
    assert path.read_bytes() == BODY
    assert len(server.ranges) == 16
    assert len(waits) == 15


def test_a_server_that_says_nothing_is_given_up(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = threading.Event()

    def silent(request: http.server.BaseHTTPRequestHandler, begin: int) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(BODY)))
        request.end_headers()
        request.wfile.write(BODY[:1000])
        request.wfile.flush()
        done.wait(10)

    server.answers = [silent, send()]
    monkeypatch.setattr(download, "_TIMEOUT", 0.2)
    assert get(server, tmp_path)[0].read_bytes() == BODY
    assert server.ranges[1].startswith("bytes=")
    done.set()


def test_no_one_listens(tmp_path: Path, server: Server) -> None:
    server.url = "http://127.0.0.1:9/a.bin"
    with pytest.raises(FetchFailed, match=r"a.bin could not be downloaded \(.*refused.*, 0 of 1048576 bytes came\)"):
        get(server, tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
        "http://files.example/x",
        "https://me:secret@files.example/x",
        "http://127.0.0.1.example/x",
        "https:///x",
        "http://[",
        "/etc/passwd",
        "data:,x",
    ],
)
def test_urls_that_are_not_used(tmp_path: Path, url: str) -> None:
    with pytest.raises(InputError, match="cannot be downloaded; an archive's URL begins with https://") as caught:
        fetch(url, SHA, 1, tmp_path / "new", NetSettings())
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_a_full_disk(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, out: object) -> None:
            pass

        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

    server.answers = [send()]
    original = download.Download._take

    def take(self: download.Download, piece: bytes) -> None:
        self.out = Full(self.out)  # type: ignore[assignment]
        original(self, piece)

    monkeypatch.setattr(download.Download, "_take", take)
    with pytest.raises(WorkError, match=r"the disk is full, a.tar.gz does not fit; make room in "):
        get(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_large_file_is_never_in_memory(server: Server, tmp_path: Path) -> None:
    count = 64
    hasher = hashlib.sha256()
    for _ in range(count):
        hasher.update(BODY)

    def large(request: http.server.BaseHTTPRequestHandler, begin: int) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(count * len(BODY)))
        request.end_headers()
        for _ in range(count):
            request.wfile.write(BODY)

    server.answers = [large]
    tracemalloc.start()
    path, _ = get(server, tmp_path, sha=hasher.hexdigest(), size=count * len(BODY))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size == count * len(BODY)
    assert peak < 6 << 20


def test_what_a_killed_process_left_is_removed(server: Server, tmp_path: Path) -> None:
    server.answers = [send()]
    (tmp_path / f".{SHA}.7f.99999999.part").write_bytes(b"half")
    (tmp_path / f".{SHA}.7f.1.part").write_bytes(b"of a process that lives")
    get(server, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".{SHA}.7f.1.part", SHA]


def find(server: Server, folder: Path) -> Found:
    return discover(server.url, folder, NetSettings(), sleep=lambda seconds: None)


def test_a_file_whose_size_nobody_recorded(server: Server, tmp_path: Path) -> None:
    server.answers = [send(upto=300_000), send()]
    path, _ = get(server, tmp_path, size=0)
    assert path.read_bytes() == BODY
    assert server.ranges == ["", "bytes=300000-"]
    assert get(server, tmp_path, size=0) == (path, [])
    assert len(server.ranges) == 2


def test_without_a_size_the_hash_alone_decides(server: Server, tmp_path: Path) -> None:
    server.answers = [send(body=BODY[:-1])]
    with pytest.raises(FetchFailed, match="is not the file that the lock names: its sha256 is "):
        get(server, tmp_path, size=0)
    assert list(tmp_path.iterdir()) == []


def test_the_hash_of_a_file_is_learned_while_it_streams(server: Server, tmp_path: Path) -> None:
    server.answers = [send()]
    assert find(server, tmp_path) == Found(tmp_path / SHA, SHA, len(BODY))
    assert (tmp_path / SHA).read_bytes() == BODY
    # what was learned needs no second download
    assert get(server, tmp_path)[0] == tmp_path / SHA
    assert server.ranges == [""]


def test_learning_resumes_the_same_file_only(server: Server, tmp_path: Path) -> None:
    """Without a hash, parts of two files would pass for one: a strong entity tag keeps them apart, or all is read."""
    server.answers = [send(upto=300_000, ETag='"a"'), send(ETag='"a"')]
    assert find(server, tmp_path).sha256 == SHA
    assert server.ranges == ["", "bytes=300000-"]
    for tag in ({}, {"ETag": 'W/"a"'}):
        server.ranges.clear()
        server.answers = [send(upto=300_000, **tag), send(**tag)]
        assert find(server, tmp_path).sha256 == SHA
        assert server.ranges == ["", ""]


def test_a_file_that_changes_while_it_is_learned_is_read_anew(server: Server, tmp_path: Path) -> None:
    other = b"\1" * (len(BODY) // 2)

    def changed(request: http.server.BaseHTTPRequestHandler, begin: int) -> None:
        assert request.headers["If-Range"] == '"a"'
        send(body=other, ETag='"b"')(request, 0)

    server.answers = [send(upto=300_000, ETag='"a"'), changed]
    assert find(server, tmp_path).sha256 == hashlib.sha256(other).hexdigest()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (send(upto=1000), "a.tar.gz could not be downloaded (the connection was cut, 1000 of 1048576 bytes came)"),
        (send(404, body=b"no"), "the server answers HTTP 404 for http://127.0.0.1"),
        (send(500, body=b"no"), "a.tar.gz could not be downloaded (HTTP 500, 0 bytes came)"),
    ],
)
def test_what_cannot_be_learned_leaves_nothing(server: Server, tmp_path: Path, answer: Answer, says: str) -> None:
    server.answers = [answer]
    with pytest.raises(FetchFailed) as caught:
        find(server, tmp_path)
    assert says in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_length_is_needed_to_see_a_cut(server: Server, tmp_path: Path) -> None:
    def endless(request: http.server.BaseHTTPRequestHandler, begin: int) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(BODY[:1000])

    server.answers = [endless]
    with pytest.raises(FetchFailed, match="has no length, so that a cut would not be seen"):
        find(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


def go_on(server: Server, path: Path, *, sha: str = SHA, size: int = len(BODY), **options: object) -> None:
    resume(server.url, sha, size, path, NetSettings(), sleep=lambda seconds: None, **options)  # type: ignore[arg-type]


def test_the_next_call_goes_on_where_a_failure_left_off(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.tar.gz"
    server.answers = [send(upto=300_000), send(503)]
    with pytest.raises(FetchFailed, match="HTTP 503, 300000 of 1048576 bytes came"):
        go_on(server, path)
    assert [item.name for item in path.parent.iterdir()] == ["a.tar.gz.part"]
    server.ranges.clear()
    server.answers = [send()]
    seen: list[int] = []
    go_on(server, path, on_progress=lambda done, size: seen.append(done))
    assert server.ranges == ["bytes=300000-"]
    assert path.read_bytes() == BODY
    assert path.stat().st_mode & 0o777 == 0o644
    assert seen[0] > 300_000
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_had_come_to_its_last_byte_is_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(BODY)
    go_on(server, tmp_path / "a", size=0)
    assert (tmp_path / "a").read_bytes() == BODY
    assert server.ranges == []


@pytest.mark.parametrize("left", [b"x" * 1000, b"x" * len(BODY), b"x" * (len(BODY) + 1)])
def test_what_was_left_and_is_wrong_is_thrown_away(server: Server, tmp_path: Path, left: bytes) -> None:
    (tmp_path / "a.part").write_bytes(left)
    server.answers = [send()]
    go_on(server, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY
    assert server.ranges[-1] == ""


def test_of_another_file_nothing_is_kept(server: Server, tmp_path: Path) -> None:
    server.answers = [send(body=b"y" * len(BODY))]
    with pytest.raises(FetchFailed, match="is not the file that the lock names"):
        go_on(server, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_gone_is_told_apart(server: Server, tmp_path: Path) -> None:
    server.answers = [send(404, body=b"")]
    with pytest.raises(Gone, match="the server answers HTTP 404"):
        go_on(server, tmp_path / "a")


def test_headers_go_along(server: Server, tmp_path: Path) -> None:
    seen: list[str | None] = []

    def answer(request: http.server.BaseHTTPRequestHandler, begin: int) -> None:
        seen.append(request.headers.get("Authorization"))
        send()(request, begin)

    server.answers = [answer]
    go_on(server, tmp_path / "a", headers={"Authorization": "Basic eDp5"})
    assert seen == ["Basic eDp5"]


def test_plain_http_is_for_servers_that_the_host_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be downloaded"):
        resume("http://mirror.example/a", SHA, 1, tmp_path / "a", NetSettings())
    with pytest.raises(InputError, match="cannot be downloaded"):
        resume("http://u:secret@mirror.example/a", SHA, 1, tmp_path / "a", NetSettings(), plain=True)
