"""What runs over one connection just now, so that it can be ended from another thread: containers and streams."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from strix_finetune.errors import EngineError, Problem

if TYPE_CHECKING:
    import requests


class Ongoing:
    """Knows the containers and the streams of a connection. After `end` nothing new begins."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._containers: set[str] = set()
        self._streams: set[requests.Response] = set()
        self._ended = False

    def check(self) -> None:
        """Raise EngineError when the connection was closed."""
        if self._ended:
            raise EngineError(Problem("the connection to the container engine was closed"))

    @contextmanager
    def container(self, name: str) -> Iterator[None]:
        """From before a container is created until after it was removed."""
        with self._changed:
            self.check()
            self._containers.add(name)
        try:
            yield
        finally:
            with self._changed:
                self._containers.discard(name)
                self._changed.notify_all()

    @contextmanager
    def stream(self, response: requests.Response) -> Iterator[None]:
        """While an answer is read."""
        with self._changed:
            self._streams.add(response)
            ended = self._ended
        if ended:
            _cut(response)
        try:
            yield
        finally:
            with self._changed:
                self._streams.discard(response)

    def end(self, remove: Callable[[str], None], patience: float) -> None:
        """Cut the streams, `remove` the containers, and wait (seconds) until those who began them have let go."""
        with self._changed:
            self._ended = True
            streams, containers = set(self._streams), sorted(self._containers)
        for response in streams:
            _cut(response)
        for name in containers:
            with suppress(Exception):
                remove(name)
        until = time.monotonic() + patience
        with self._changed:
            while self._containers and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)


def _cut(response: requests.Response) -> None:
    """End the connection of an answer: whoever waits for its next piece, in whatever thread, is told at once.

    Closing the answer would not do that; the socket lies below http.client's reader.
    """
    raw: Any = response.raw
    with suppress(AttributeError, OSError):
        raw._fp.fp.raw._sock.shutdown(socket.SHUT_RDWR)
