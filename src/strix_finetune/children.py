"""Programs that this process runs and that must not outlive it: they clean up after themselves when told to end.

A child is told to end when its `with` block is left early, when `stop_all` is called, and by the kernel when this
process dies, whatever killed it.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence

_GRACE = 30.0
_lock = threading.Lock()
_running: set[subprocess.Popen[str]] = set()


@contextlib.contextmanager
def child(command: Sequence[str], *, env: Mapping[str, str], merge: bool = True) -> Iterator[subprocess.Popen[str]]:
    """Start `command` with its output as text lines in `stdout` (with `merge`, what it says to stderr is in it)."""
    # the kernel sends SIGTERM when the parent is gone; without setpriv the program would run on alone
    guard = ("setpriv", "--pdeathsig", "TERM", "--") if shutil.which("setpriv") else ()
    process = subprocess.Popen(
        [*guard, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merge else subprocess.DEVNULL,
        text=True,
        errors="replace",
        env=dict(env),
    )
    with _lock:
        _running.add(process)
    try:
        yield process
        process.wait()
    finally:
        _end(process)
        with _lock:
            _running.discard(process)
        if process.stdout:
            process.stdout.close()


def stop_all() -> None:
    """Tell every running child to end and wait until it has cleaned up; their `with` blocks then see an exit code."""
    with _lock:
        processes = list(_running)
    for process in processes:
        process.terminate()
    for process in processes:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
