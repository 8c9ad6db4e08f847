"""What a process says while it waits for others: waiting in silence looks like hanging."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Seconds of silence, where the patience is not shorter still.
_SILENCE = 20.0


def write(rank: int, text: str, file: int = 2) -> None:
    """Write a line to standard error, at once: what ends this process may come in the middle of a word."""
    prefix = f"rank {rank}: " if rank else ""
    with suppress(OSError):
        os.write(file, f"train: {prefix}{text}\n".encode())


@contextmanager
def telling(rank: int, text: str, patience: float, file: int = 2) -> Iterator[None]:
    """Say once what is waited for, if this lasts; `patience`: seconds that it may. `file`: a descriptor."""
    timer = threading.Timer(min(_SILENCE, patience / 3), write, (rank, text, file))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
