"""The files of a set of wheels, fetched from a small index over HTTP that refuses, cuts and lies."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from strix_finetune import web, wheelfiles
from strix_finetune.errors import FetchFailed
from strix_finetune.lockmodel import WheelLock, WheelSetLock
from strix_finetune.netconf import NetSettings
from strix_finetune.schema import Index

BODIES = {
    "/whl/torch/torch-2.13.0+rocm10-cp313-cp313-linux_x86_64.whl": b"torch" * 5000,
    "/whl/rocm/rocm-10.0.0.tar.gz": b"rocm" * 10,
}


@dataclass
class Place:
    """An index: `bodies` by decoded path; what is not there is answered by 403. `faults`: path → answers that come
    first, a status, or a number of bytes after which the connection ends."""

    url: str = ""
    bodies: dict[str, bytes] = field(default_factory=lambda: dict(BODIES))
    faults: dict[str, list[str]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    from urllib.parse import unquote

    state = Place()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, span = unquote(self.path), self.headers.get("Range", "")
            state.asked.append((self.path, span))
            self.close_connection = True
            fault = state.faults.get(path, [])
            status, _, cut = (fault.pop(0) if fault else "200").partition(" ")
            body = state.bodies.get(path)
            code = 403 if body is None else int(status)
            begin = int(span.removeprefix("bytes=").rstrip("-") or 0)
            whole = body or b""
            self.send_response(206 if code == 200 and begin else code)
            self.send_header("Content-Range", f"bytes {begin}-{len(whole) - 1}/{len(whole)}")
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", str(len(whole) - begin if code == 200 else 0))
            self.end_headers()
            if code == 200:
                self.wfile.write(whole[begin : int(cut) if cut else None])

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Quiet(http.server.ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            pass

    monkeypatch.setattr(web, "pause", lambda fruitless, wait: 0.0)
    with Quiet(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
        state.url = f"http://127.0.0.1:{httpd.server_port}/whl"
        yield state
        httpd.shutdown()


def locked(url: str) -> WheelSetLock:
    torch, rocm = BODIES.values()
    return WheelSetLock(
        "3.13",
        "amd",
        "2026-11-30T04:00:00Z",
        "",
        (
            WheelLock(
                "torch",
                "2.13.0+rocm10",
                f"{url}/torch/torch-2.13.0%2Brocm10-cp313-cp313-linux_x86_64.whl",
                hashlib.sha256(torch).hexdigest(),
            ),
            WheelLock("rocm", "10.0.0", f"{url}/rocm/rocm-10.0.0.tar.gz", hashlib.sha256(rocm).hexdigest(), len(rocm)),
        ),
    )


def get(held: WheelSetLock, index: Place, folder: Path, mirror: str = "") -> tuple[dict[str, bytes], list[str]]:
    told: list[str] = []
    settings = NetSettings(index_urls={"STRIX_INDEX_AMD": mirror} if mirror else {})
    described = Index(url=index.url, absent=[403])
    found = wheelfiles.fetch_set(held, described, folder, settings, told.append)
    return {wheel.file: path.read_bytes() for wheel, path in found}, told


def test_each_file_is_fetched_once(index: Place, tmp_path: Path) -> None:
    files, told = get(locked(index.url), index, tmp_path)
    assert files == {path.rsplit("/", 1)[1]: body for path, body in BODIES.items()}
    assert told == [
        "fetching torch-2.13.0+rocm10-cp313-cp313-linux_x86_64.whl (1 of 2)",
        "fetching rocm-10.0.0.tar.gz (2 of 2, 0.0 MB)",
    ]
    assert get(locked(index.url), index, tmp_path) == (files, [])
    assert len(index.asked) == 2


def test_a_cut_a_busy_server_and_a_broken_one(index: Place, tmp_path: Path) -> None:
    index.faults = {
        "/whl/torch/torch-2.13.0+rocm10-cp313-cp313-linux_x86_64.whl": ["503", "200 10000", "429"],
        "/whl/rocm/rocm-10.0.0.tar.gz": ["500", "200 3"],
    }
    files, _ = get(locked(index.url), index, tmp_path)
    assert list(files.values()) == list(BODIES.values())
    assert [span for _, span in index.asked] == ["", "", "bytes=10000-", "bytes=10000-", "", "", "bytes=3-"]


def test_a_file_that_the_index_does_not_serve(index: Place, tmp_path: Path) -> None:
    del index.bodies["/whl/rocm/rocm-10.0.0.tar.gz"]
    with pytest.raises(FetchFailed) as caught:
        get(locked(index.url), index, tmp_path)
    assert str(caught.value) == (
        "the index 'amd' does not serve rocm-10.0.0.tar.gz; "
        "find out why, then lock it anew with 'strix-finetune lock --update rocm'"
    )
    assert len(index.asked) == 2


@pytest.mark.parametrize("body", [b"mcor" * 10, b"rocm" * 11])
def test_another_file_in_its_place(index: Place, tmp_path: Path, body: bytes) -> None:
    index.bodies["/whl/rocm/rocm-10.0.0.tar.gz"] = body
    with pytest.raises(FetchFailed, match=r"the index 'amd' has another file than the lock: rocm-10.0.0.tar.gz "):
        get(locked(index.url), index, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [locked("").wheels[0].sha256]


def test_a_mirror_is_asked_in_the_place_of_the_index(index: Place, tmp_path: Path) -> None:
    held = locked("https://nowhere.invalid/whl")
    described = replace(index, url="https://nowhere.invalid/whl")
    files, _ = get(held, described, tmp_path, mirror=index.url)
    assert list(files.values()) == list(BODIES.values())
    assert index.asked[0][0] == "/whl/torch/torch-2.13.0%2Brocm10-cp313-cp313-linux_x86_64.whl"
    del index.bodies["/whl/rocm/rocm-10.0.0.tar.gz"]
    with pytest.raises(
        FetchFailed, match="put the locked file there, or take another place for the index than http://"
    ):
        get(held, described, tmp_path / "new", mirror=index.url)
