"""Signals that mean something else than usual while a block lasts."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def caught(
    numbers: Iterable[signal.Signals], handler: signal.Handlers | Callable[[int, FrameType | None], Any]
) -> Iterator[None]:
    """`handler` gets them. In another thread than the main one nothing changes: signals are not delivered there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
