"""The same work for several things at once: the first fault ends the others at their next step."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
Check = Callable[[], None]

# a registry far away answers slowly: more at once than this machine has cores
WORKERS = 4


class Stopped(Exception):
    """Another one failed, or the driver was interrupted."""


def together(
    items: Sequence[T],
    work: Callable[[T, Check], R],
    *,
    check: Check = lambda: None,
    workers: int = WORKERS,
) -> list[R]:
    """`work(item, check)` for each, in that order of beginning; returns the results in the order of the items.

    What `work` is given raises Stopped when it should not go on. `check` is called now and then in this thread and may
    raise. The threads are daemons: an interrupted driver does not wait for one that hears nothing.
    """
    waiting = deque(enumerate(items))
    results: SimpleQueue[tuple[int, R | BaseException]] = SimpleQueue()
    stop = threading.Event()

    def going_on() -> None:
        if stop.is_set():
            raise Stopped

    def worker() -> None:
        while True:
            try:
                number, item = waiting.popleft()
            except IndexError:
                return
            try:
                going_on()
                results.put((number, work(item, going_on)))
            except BaseException as error:  # noqa: BLE001 (raised again in the calling thread)
                results.put((number, error))

    for _ in range(min(workers, len(items))):
        threading.Thread(target=worker, name="blobs", daemon=True).start()
    found: dict[int, R] = {}
    try:
        while len(found) < len(items):
            check()
            with suppress(Empty):
                # not for ever: an interrupt that comes just before that would not be seen
                number, result = results.get(timeout=0.2)
                if isinstance(result, BaseException):
                    raise result
                found[number] = result
    finally:
        stop.set()
    return [found[number] for number in range(len(items))]
