"""What all nodes print: merged, each line with its node's name in front, and kept, one file a node."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_LAST = 60


class Log:
    """The output of one node. `feed` takes it as it comes, in pieces; whole lines go on."""

    def __init__(self, name: str, width: int, path: Path, show: Callable[[str], None]) -> None:
        self.name = name
        self.path = path
        self.last: deque[str] = deque(maxlen=_LAST)
        self._front = f"{name:<{width}} | "
        self._show = show
        self._rest = b""
        self._file = path.open("ab")
        self._kept = True

    def feed(self, data: bytes) -> None:
        """Never fails: who reads the output of a training must go on reading it."""
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:  # a full disk is no reason to end a training
            if self._kept:
                self._show(f"{self._front}(from here on not in {self.path}: {error.strerror})\n")
            self._kept = False
        except ValueError:  # it is closed, and what comes is too late
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)

    def _line(self, data: bytes) -> None:
        # of a bar that is drawn over and over, what stands there in the end
        text = data.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2].rstrip()
        self.last.append(text)
        self._show(f"{self._front}{text}\n" if text else f"{self._front.rstrip()}\n")

    def close(self) -> None:
        """What came without a line end is a line, too."""
        if self._rest:
            self._line(self._rest)
            self._rest = b""
        with suppress(OSError):  # what it could not write it tries to write again
            self._file.close()


class Logs:
    """The logs of all nodes in a folder, which is made. `write` gets whole lines, of one node at a time."""

    def __init__(self, folder: Path, names: list[str], write: Callable[[str], None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._lock = threading.Lock()
        self._write = write
        width = max(map(len, names))
        self.of = {name: Log(name, width, folder / f"{name}.log", self._show) for name in names}

    def _show(self, line: str) -> None:
        with self._lock:
            try:
                try:
                    self._write(line)
                except UnicodeEncodeError:  # a terminal of the locale C
                    self._write(line.encode("ascii", "replace").decode("ascii"))
            except (OSError, ValueError):  # nobody reads any more; the files are still written
                self._write = lambda _: None

    def close(self) -> None:
        for log in self.of.values():
            log.close()
