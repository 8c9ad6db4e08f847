"""An all_reduce in a process of its own, which may crash, hang or be killed without harm to this one.

`prepare` starts the process early: importing torch takes seconds, in which other probes run.
"""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

_lock = threading.Lock()
_children: dict[str, tuple[subprocess.Popen[bytes], str]] = {}


def prepare(seconds: float, backend: str, env: dict[str, str]) -> dict[str, Any]:
    """Start the process of `backend` ("gloo" or "nccl") with `env` added; it waits for `allreduce`."""
    source = pkgutil.get_data(__package__ or "", "reduce.py")
    assert source
    log = tempfile.NamedTemporaryFile(prefix="strix-reduce-", delete=False)  # noqa: SIM115 (the child writes to it)
    with log:
        child = subprocess.Popen(
            [sys.executable, "-c", source.decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **env},
            start_new_session=True,
        )
    with _lock:
        before = _children.pop(backend, None)
        _children[backend] = (child, log.name)
    if before:
        _end(*before)
    return {"pid": child.pid}


def allreduce(
    seconds: float, backend: str, rank: int, world: int, address: str, port: int, size: int
) -> dict[str, Any]:
    """One small all_reduce and one of `size` bytes with the other nodes; all of it within `seconds`.

    Returns {"ok", "stage", "said", …}: how far it came and the last words when it failed, times when it did not.
    """
    with _lock:
        child, log = _children.pop(backend)
    words = {
        "backend": backend,
        "rank": rank,
        "world": world,
        "address": address,
        "port": port,
        "size": size,
        "seconds": seconds,
    }
    stage, result = "import", None
    timer = threading.Timer(seconds, _kill, (child,))
    timer.start()
    try:
        assert child.stdin
        assert child.stdout
        with suppress(OSError):
            child.stdin.write(json.dumps(words).encode() + b"\n")
            child.stdin.flush()
        for line in child.stdout:
            said = json.loads(line)
            stage, result = said["stage"], said
            if stage == "done":
                break
        late = not timer.is_alive()
    finally:
        timer.cancel()
        words_left = _end(child, log)
    if result and stage == "done":
        return {"ok": True, **result}
    return {"ok": False, "stage": stage, "late": late, "said": words_left}


def stop() -> None:
    """End every process that was started here."""
    with _lock:
        left = list(_children.values())
        _children.clear()
    for child, log in left:
        _end(child, log)


def _kill(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _end(child: subprocess.Popen[bytes], log: str) -> str:
    """End it and all that it started; the last lines that it wrote."""
    _kill(child)
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream:
            with suppress(OSError):
                stream.close()
    try:
        text = Path(log).read_text("utf-8", "replace")[-20000:]
        Path(log).unlink()
    except OSError:
        return ""
    return "\n".join(text.strip().splitlines()[-40:])
