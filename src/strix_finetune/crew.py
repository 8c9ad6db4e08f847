"""The threads that work on layers, one a layer: they hand in what became of it, and can all be ended at once.

They are daemons: an interrupted driver does not wait for a thread that hears nothing of it (a download that stalls).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from strix_finetune import children
from strix_finetune.events import Emit, Event

# seconds that the threads of an interrupted build have to end, after their engine and their programs were ended
GRACE = 0.5

T = TypeVar("T")
Check = Callable[[], None]


class Stopped(Exception):
    """The driver was interrupted: nothing more is said or tagged."""


class Crew(Generic[T]):
    """`emit` gets what the threads say until the crew is stopped; `end` ends what they wait for."""

    def __init__(self, emit: Emit, end: Callable[[], None]) -> None:
        self._emit, self._end = emit, end
        self._stop = threading.Event()
        self._results: SimpleQueue[tuple[str, T | BaseException]] = SimpleQueue()
        self.busy: dict[str, threading.Thread] = {}

    def start(self, name: str, work: Callable[[Emit, Check], T]) -> None:
        """Begin `work`. What it is given raises Stopped after the crew was stopped: to say something, and to go on."""
        thread = threading.Thread(target=self._run, args=(name, work), name=f"build {name}", daemon=True)
        self.busy[name] = thread
        thread.start()

    def next(self) -> tuple[str, T]:
        """Wait for one to end. Raises what it raised."""
        while True:
            # an interrupt that comes just before an endless wait would not be seen before its end
            with suppress(Empty):
                name, result = self._results.get(timeout=0.2)
                break
        self.busy.pop(name).join()
        if isinstance(result, BaseException):
            raise result
        return name, result

    def stop(self) -> None:
        """Let the threads end, but not for long."""
        self._stop.set()
        children.stop_all()
        self._end()
        until = time.monotonic() + GRACE
        for thread in self.busy.values():
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self, name: str, work: Callable[[Emit, Check], T]) -> None:
        result: T | BaseException
        try:
            result = work(self._forward, self._check)
        except BaseException as error:  # noqa: BLE001 (next() raises it again)
            result = error
        self._results.put((name, result))

    def _forward(self, event: Event) -> None:
        self._check()
        self._emit(event)

    def _check(self) -> None:
        if self._stop.is_set():
            raise Stopped
