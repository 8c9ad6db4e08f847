"""A line of JSON comes in, one goes out for each: {"id", "do", "seconds", …} → {"id", "value"} or {"id", "error"}.

Commands run side by side. Every one has a time limit, and the whole ends with its input, or when nothing was asked
for some time.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from . import collective, facts, mtu, probe, serve

Command = Callable[..., Any]
COMMANDS: dict[str, Command] = {
    "clock": lambda seconds: {"unix_seconds": time.time()},
    "facts": facts.facts,
    "routes": facts.routes,
    "serve": serve.serve,
    "unserve": serve.unserve,
    "connect": probe.connect,
    "latency": probe.latency,
    "bandwidth": probe.bandwidth,
    "mtu": mtu.largest,
    "prepare": collective.prepare,
    "allreduce": collective.allreduce,
}
# a driver that is gone without closing our input
_IDLE_SECONDS = 180.0
_lock = threading.Lock()


def _answer(number: object, **words: object) -> None:
    line = json.dumps({"id": number, **words}) + "\n"
    with _lock:
        sys.stdout.write(line)
        sys.stdout.flush()


def _run(request: dict[str, Any]) -> None:
    number = request.pop("id", None)
    name = request.pop("do", "")
    try:
        value = COMMANDS[name](**request)
    except Exception as error:  # noqa: BLE001 (whatever it is, the driver hears of it and the other commands go on)
        _answer(number, error=f"{type(error).__name__}: {error}"[:2000])
        return
    _answer(number, value=value)


def main() -> None:
    """Serve standard input to its end."""
    last = time.monotonic()

    def watch() -> None:
        while time.monotonic() - last < _IDLE_SECONDS:
            time.sleep(5)
        _end(1)

    threading.Thread(target=watch, daemon=True).start()
    _answer(0, value="ready")
    for line in sys.stdin:
        last = time.monotonic()
        try:
            request = json.loads(line)
        except ValueError:
            _answer(None, error="that is no JSON")
            continue
        threading.Thread(target=_run, args=(request,), daemon=True).start()
    _end(0)


def _end(code: int) -> None:
    """End at once: threads may hang in what they try."""
    collective.stop()
    os._exit(code)


if __name__ == "__main__":
    main()
