"""Watches the nodes of a training: the first that fails ends all, Ctrl-C ends all in order, and nobody hangs.

Nothing is polled: the engines and the signals put what happens into one queue.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from strix_finetune.caught import caught

# Seconds that the others have to end by themselves (the processes tell one another what went wrong), then after
# SIGTERM, then after they were killed: together well below half a minute.
GRACE = (10.0, 6.0, 5.0)
# after the head is done, for the others
AFTER_HEAD = 60.0
# after another one has stopped as we asked, for the checkpoint of the head; who has not heard the signal gets one more
AFTER_ASKED = 300.0
# two signals within this time are one request: of a terminal, and of who hands it on
_SAME_REQUEST = 0.5
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Runs(Protocol):
    """A training on one node, as a container is."""

    def signal(self, name: str) -> None: ...

    def remove(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Ended:
    """The container of node `index` ended with `code`, or, where that is None, was lost, and `why`. `at`: monotonic."""

    index: int
    code: int | None
    out_of_memory: bool
    why: str
    at: float
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """A signal to this process."""

    name: str
    at: float


Events = queue.SimpleQueue[Ended | Asked]


@contextmanager
def asked(events: Events) -> Iterator[None]:
    """While this lasts, signals that ask this process to end are events."""

    def handle(number: int, _frame: FrameType | None) -> None:
        events.put(Asked(signal.Signals(number).name, time.monotonic()))

    with caught(_SIGNALS, handle):
        yield


class Supervisor:
    """Waits until all have ended. `interrupted`: we were asked to end. `tell` gets sentences for the user."""

    def __init__(self, runs: Sequence[Runs], events: Events, tell: Callable[[str], None]) -> None:
        self._runs = runs
        self._events = events
        self._tell = tell
        self._ends: dict[int, Ended] = {}
        self._stages: Iterator[tuple[Callable[[], None], float]] = iter(())
        self._until: float | None = None
        self._asked_at: float | None = None
        self._stopping = False
        self._generous = False

    @property
    def interrupted(self) -> bool:
        return self._asked_at is not None

    def wait(self) -> list[Ended]:
        """How each ended, in their order."""
        while len(self._ends) < len(self._runs):
            left = None if self._until is None else max(0.0, self._until - time.monotonic())
            try:
                event = self._events.get(timeout=left)
            except queue.Empty:
                self._next()
                continue
            if isinstance(event, Asked):
                self._on_signal(event)
            else:
                self._on_end(event)
        return [self._ends[index] for index in range(len(self._runs))]

    @property
    def _left(self) -> list[Runs]:
        return [run for index, run in enumerate(self._runs) if index not in self._ends]

    def _on_end(self, event: Ended) -> None:
        if event.index in self._ends:
            return
        # who was killed by us says nothing about why
        stopped = self._stopping and event.code is not None and event.code >= 128
        self._ends[event.index] = Ended(event.index, event.code, event.out_of_memory, event.why, event.at, stopped)
        if self._begun and not self._generous:
            return
        if event.code is None or (event.code and not self.interrupted):
            self._begin(GRACE)
        elif event.index == 0:
            # after the head has saved, there is nothing to wait for
            self._begin((AFTER_HEAD, *GRACE[1:]))
        elif event.code and not self._begun:
            self._begin((AFTER_ASKED, *GRACE[1:]))
            self._generous = True

    def _on_signal(self, event: Asked) -> None:
        if self._asked_at is None:
            self._asked_at = event.at
            self._tell(f"{event.name}: ending on all nodes, with a checkpoint; once more ends at once")
            each(self._left, lambda run: run.signal(event.name), 10.0)
        elif event.at - self._asked_at > _SAME_REQUEST:
            self._tell("ending at once")
            self._kill()

    @property
    def _begun(self) -> bool:
        return self._until is not None

    def _begin(self, seconds: Sequence[float]) -> None:
        """Wait for the others; then ask them to end, kill them, and give them up."""
        self._generous = False
        self._until = time.monotonic() + seconds[0]
        self._stages = iter(((self._terminate, seconds[1]), (self._kill, seconds[2])))

    def _next(self) -> None:
        self._generous = False
        stage = next(self._stages, None)
        if stage is None:
            for index in range(len(self._runs)):
                if index not in self._ends:
                    why = "its engine does not end the container"
                    self._ends[index] = Ended(index, None, False, why, time.monotonic(), self._stopping)
            return
        action, seconds = stage
        action()
        self._until = time.monotonic() + seconds

    def _terminate(self) -> None:
        self._stopping = True
        each(self._left, lambda run: run.signal("SIGTERM"), 5.0)

    def _kill(self) -> None:
        self._stopping = True
        self._generous = False
        each(self._left, lambda run: run.signal("SIGKILL"), 5.0)
        self._until = time.monotonic() + GRACE[2]
        self._stages = iter(())


def each(runs: Sequence[Runs], work: Callable[[Runs], None], seconds: float) -> None:
    """Do something with all of them at once, and wait no longer than `seconds`: a lost node does not answer."""
    threads = [threading.Thread(target=work, args=(run,), daemon=True) for run in runs]
    until = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
