"""The stream between us and a container: read with a deadline, or joined to the caller's own terminal; signals."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from strix_finetune.caught import caught

if TYPE_CHECKING:
    from docker import APIClient

_BLOCK = 64 * 1024
# what ends a program that is asked to; a container's training then writes a checkpoint and ends
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PATIENCE = 2  # signals that are passed on; the next one ends us, and the container at once


class Link:
    """The attach socket of one container; non-blocking, so that nothing waits past a deadline."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)

    def read(self) -> bytes | None:
        """What is there: bytes, None when nothing is, empty at the end."""
        try:
            return self.sock.recv(_BLOCK)
        except (BlockingIOError, InterruptedError):
            return None
        except ConnectionResetError:
            return b""

    def write(self, data: bytes) -> None:
        """Send everything, waiting where the container reads slowly."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.sock.send(view) :]
            except BlockingIOError:
                with selectors.DefaultSelector() as selector:
                    selector.register(self.sock, selectors.EVENT_WRITE)
                    selector.select()

    def drain(self, on_data: Callable[[bytes], None], deadline: float | None) -> bool:
        """Read to the end. False when the deadline (monotonic seconds) came first."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.sock, selectors.EVENT_READ)
            while True:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                if not selector.select(left):
                    continue
                data = self.read()
                if data == b"":
                    return True
                if data:
                    on_data(data)


@contextmanager
def attached(api: APIClient, name: str, params: dict[str, int]) -> Iterator[Link]:
    """Attach to a container that does not run yet, so that nothing it says is missed; closed at the end."""
    raw: Any = api.attach_socket(name, params=params)
    response = getattr(raw, "_response", None)
    try:
        yield Link(getattr(raw, "_sock", raw))
    finally:
        with suppress(OSError):
            (response or raw).close()


def converse(
    api: APIClient,
    name: str,
    link: Link,
    on_data: Callable[[bytes], None],
    deadline: float | None,
    terminal: bool,
) -> bool:
    """Join our standard input to the container until it ends. False when the deadline came first.

    With `terminal` ours goes into raw mode, so that Ctrl-C and friends are keys for the container, and
    the container's window follows ours.
    """
    with _raw_mode() if terminal else _plain(), _window(api, name) if terminal else _plain():
        return _pump(link, on_data, deadline)


def _pump(link: Link, on_data: Callable[[bytes], None], deadline: float | None) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(link.sock, selectors.EVENT_READ)
        try:
            selector.register(0, selectors.EVENT_READ)
        except PermissionError:
            # A regular file is always readable and cannot be waited for.
            while block := os.read(0, _BLOCK):
                link.write(block)
            _half_close(link)
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            for key, _ in selector.select(left):
                if key.fd == 0:
                    typed = os.read(0, _BLOCK)
                    with suppress(BrokenPipeError, ConnectionResetError):
                        link.write(typed)
                    if not typed:
                        selector.unregister(0)
                        _half_close(link)
                    continue
                data = link.read()
                if data == b"":
                    return True
                if data:
                    on_data(data)


def _half_close(link: Link) -> None:
    with suppress(OSError):
        link.sock.shutdown(socket.SHUT_WR)


@contextmanager
def signals(api: APIClient, name: str) -> Iterator[None]:
    """Signals that ask us to end go to the container instead, which ends by itself; one too many ends us."""
    count = 0

    def pass_on(number: int, _frame: FrameType | None) -> None:
        nonlocal count
        from docker.errors import APIError

        count += 1
        if count > _PATIENCE:
            raise KeyboardInterrupt
        with suppress(OSError, APIError):  # it may have ended just now, or not have begun
            api.kill(name, signal.Signals(number).name)

    with caught(_PASSED_ON, pass_on):
        yield


@contextmanager
def _plain() -> Iterator[None]:
    yield


@contextmanager
def _raw_mode() -> Iterator[None]:
    import termios
    from tty import setraw

    before = termios.tcgetattr(0)
    setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextmanager
def _window(api: APIClient, name: str) -> Iterator[None]:
    """Give the container our window size now and whenever it changes."""

    def resize(_signum: int = 0, _frame: FrameType | None = None) -> None:
        from docker.errors import APIError

        told = None
        with suppress(OSError, APIError):  # the container may have ended just now
            # a change may come while one is told, and must not be followed by what was before it
            while (size := os.get_terminal_size(1)) != told:
                api.resize(name, height=size.lines, width=size.columns)
                told = size

    # caught first: a change between the two would be lost
    with caught((signal.SIGWINCH,), resize):
        resize()
        yield
