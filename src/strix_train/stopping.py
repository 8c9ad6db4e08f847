"""SIGINT and SIGTERM: while steps run, they ask for a checkpoint and a clean end; a second one ends at once.

What comes within half a second of the first is the same request: a scheduler signals every process of a job, and an
engine's client, a container's init and torchrun each hand on what they got.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from strix_train.errors import Interrupted

# seconds
SAME_REQUEST = 0.5


class Stopper:
    """Owns the two signals while a run lasts. `requested`: the training loop should save and end."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._deferred = False
        self._before: dict[signal.Signals, object] = {}
        self._asked = 0.0
        self.requested = False

    def __enter__(self) -> Stopper:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """While this lasts, the first signal only sets `requested`."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._deferred and not self.requested:
            self.requested = True
            self._asked = time.monotonic()
            self._tell(f"{name}: stopping after this step, with a checkpoint; once more stops at once")
            return
        if self.requested and time.monotonic() - self._asked < SAME_REQUEST:
            return
        raise Interrupted(name)
