"""What runs over a connection is ended from another thread, at once."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator

import pytest
import requests

from strix_finetune.engine.ongoing import Ongoing
from strix_finetune.errors import EngineError


class Silent(http.server.BaseHTTPRequestHandler):
    """Begins an answer, and says no more."""

    release = threading.Event()
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"5\r\nbegun\r\n")
        self.release.wait(20)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def silent() -> Iterator[str]:
    Silent.release.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        Silent.release.set()
        server.shutdown()


def test_whoever_waits_for_an_answer_is_told(silent: str) -> None:
    ongoing, begun = Ongoing(), threading.Event()
    raised: list[BaseException] = []

    def read() -> None:
        with requests.get(silent, stream=True, timeout=(5, 20)) as response, ongoing.stream(response):
            try:
                for piece in response.iter_content(chunk_size=None):
                    assert piece == b"begun"
                    begun.set()
            except requests.RequestException as error:
                raised.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(10)
    time.sleep(0.1)
    began = time.monotonic()
    ongoing.end(lambda name: None, 5)
    thread.join(10)
    assert time.monotonic() - began < 4
    assert len(raised) == 1


def test_an_answer_that_comes_too_late_is_cut(silent: str) -> None:
    ongoing = Ongoing()
    ongoing.end(lambda name: None, 5)
    with requests.get(silent, stream=True, timeout=(5, 20)) as response, ongoing.stream(response):
        began = time.monotonic()
        with pytest.raises(requests.RequestException):
            list(response.iter_content(chunk_size=None))
        assert time.monotonic() - began < 5


def test_containers_are_removed_and_waited_for() -> None:
    ongoing, begun = Ongoing(), threading.Event()
    gone, done = threading.Event(), threading.Event()
    removed: list[str] = []

    def run(name: str) -> None:
        with ongoing.container(name):
            begun.set()
            gone.wait(10)
            time.sleep(0.2)
        done.set()

    thread = threading.Thread(target=run, args=("one",))
    thread.start()
    assert begun.wait(10)

    def remove(name: str) -> None:
        removed.append(name)
        gone.set()

    ongoing.end(remove, 10)
    thread.join(10)
    assert removed == ["one"]
    assert done.is_set()
    ongoing.end(remove, 10)
    assert removed == ["one"]


def test_one_that_does_not_let_go_is_not_waited_for_ever() -> None:
    ongoing = Ongoing()

    def refuse(name: str) -> None:
        raise EngineError("busy")

    with ongoing.container("one"):
        began = time.monotonic()
        ongoing.end(refuse, 0.2)
        assert 0.1 < time.monotonic() - began < 5


def test_nothing_new_begins_after_the_end() -> None:
    ongoing = Ongoing()
    ongoing.check()
    ongoing.end(lambda name: None, 1)
    with pytest.raises(EngineError, match="was closed"):
        ongoing.check()
    with pytest.raises(EngineError, match="was closed"), ongoing.container("one"):
        pytest.fail("it began")
