"""What the user sees: our lines on the real standard output; what libraries print goes to the run's log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


class Console:
    """Writes lines for the user. A silent one (other ranks of a distributed run) writes nothing."""

    def __init__(self, stream: TextIO | None = None, *, silent: bool = False) -> None:
        self._stream = stream or sys.stdout
        self._silent = silent
        self._tty = not silent and self._stream.isatty()
        self._open_line = False
        self._last = 0.0
        self._log: TextIO | None = None

    def line(self, text: str = "") -> None:
        """Write one line."""
        if self._silent:
            return
        if self._open_line:
            self._stream.write("\n")
            self._open_line = False
        self._stream.write(text + "\n")
        self._stream.flush()
        if self._log:
            self._log.write(f"{time.strftime('%H:%M:%S')} {text}\n")
            self._log.flush()

    def fact(self, name: str, text: str) -> None:
        """Write one line of the summary: a word, then what it is."""
        self.line(f"{name:<9} {text}")

    def progress(self, text: str, *, last: bool = False) -> None:
        """Show where the run is: rewritten in place on a terminal, else a new line every few seconds."""
        if self._silent:
            return
        if self._tty:
            self._stream.write(f"\r\x1b[K{text}")
            self._open_line = True
            self._stream.flush()
        elif last or time.monotonic() - self._last >= 5.0:
            self._last = time.monotonic()
            self._stream.write(text + "\n")
            self._stream.flush()

    @contextmanager
    def capturing(self, log: Path) -> Iterator[None]:
        """Send file descriptors 1 and 2 to the end of `log`; this console keeps writing to the real output."""
        sys.stdout.flush()
        sys.stderr.flush()
        kept = os.dup(1), os.dup(2)
        before = self._stream
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if _descriptor(before) == 1:
                self._stream = os.fdopen(os.dup(kept[0]), "w", encoding="utf-8", errors="replace")
            self._log = log.open("a", encoding="utf-8")
            os.dup2(target, 1)
            os.dup2(target, 2)
            try:
                yield
            finally:
                if self._open_line:
                    self.line()
                sys.stdout.flush()
                sys.stderr.flush()
                os.dup2(kept[0], 1)
                os.dup2(kept[1], 2)
                if self._stream is not before:
                    self._stream.close()
                self._stream = before
                self._log.close()
                self._log = None
        finally:
            os.close(target)
            os.close(kept[0])
            os.close(kept[1])


def _descriptor(stream: TextIO) -> int:
    """Return the file descriptor behind a stream, or -1."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return -1


def duration(seconds: float) -> str:
    """Return a time span as people say it: 48 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def gigabytes(size: float) -> str:
    """Return a number of bytes in GiB."""
    return f"{size / 2**30:.2f} GiB"
