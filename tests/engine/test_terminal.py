"""An interactive container on a real pseudo-terminal: size, keys, Ctrl-C and the exit code."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from typing import TYPE_CHECKING

import pytest

from tests.engine.conftest import LABEL

if TYPE_CHECKING:
    from tests.engine.conftest import Bench

pytestmark = pytest.mark.engine

DRIVER = """
import os, sys, termios
from strix_finetune.engine.base import RunRequest
from strix_finetune.engine.select import connect
kind, image, label = sys.argv[1:]
engine = connect(kind, os.environ)
before = termios.tcgetattr(0)
request = RunRequest(
    image, ("sh", "-c", sys.stdin.readline()), labels={label: "run"}, interactive=True
)
result = engine.run(request, lambda data: os.write(1, data))
engine.close()
print("restored", termios.tcgetattr(0) == before)
print("exit", result.exit_code, result.signal)
"""


class Terminal:
    """A driver behind a pseudo-terminal of 33 by 101."""

    def __init__(self, bench: Bench, script: str) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execv(sys.executable, [sys.executable, "-c", DRIVER, bench.engine.info.kind, bench.base, LABEL])
        self.resize(33, 101)
        self.seen = ""
        self.type(script + "\n")

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def expect(self, text: str, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} does not come; seen: {self.seen!r}"
            try:
                data = os.read(self.master, 4096)
            except OSError:
                data = b""
            assert data, f"the driver ended before {text!r}; seen: {self.seen!r}"
            self.seen += data.decode("utf-8", "replace")
        self.seen = self.seen.partition(text)[2]

    def close(self) -> None:
        os.close(self.master)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)


def test_a_real_terminal(bench: Bench) -> None:
    terminal = Terminal(
        bench,
        "trap 'echo in''terrupted; exit 5' INT; sleep 0.5; echo size $(stty size); read x; echo got $x;"
        " echo now $(stty size); echo rea''dy; while :; do sleep 0.1; done",
    )
    try:
        terminal.expect("size 33 101")
        terminal.type("hello\r")
        terminal.expect("hello\r\n")  # the container's terminal echoes what is typed
        terminal.expect("got hello")
        terminal.expect("now 33 101")
        terminal.expect("ready")
        terminal.type("\x03")
        terminal.expect("interrupted")
        terminal.expect("restored True")
        terminal.expect("exit 5")
    finally:
        terminal.close()
    assert bench.containers() == []


def test_the_container_s_window_follows_ours(bench: Bench) -> None:
    terminal = Terminal(bench, "echo rea''dy; read x; echo size $(stty size)")
    try:
        terminal.expect("ready")
        terminal.resize(20, 60)
        time.sleep(1)
        terminal.type("\r")
        terminal.expect("size 20 60")
        terminal.expect("exit 0")
    finally:
        terminal.close()
