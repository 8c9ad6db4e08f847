"""Programs that this process runs and that must not outlive it, whatever ends this process.

`contained` is for root: the program gets mount and process namespaces of its own, so that killing it takes along
all that it started and all that it mounted. Without it, the program is told to end and must clean up by itself.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence

_GRACE = 30.0
_lock = threading.Lock()
_running: dict[subprocess.Popen[str], bool] = {}


@contextlib.contextmanager
def child(command: Sequence[str], *, env: Mapping[str, str], contained: bool) -> Iterator[subprocess.Popen[str]]:
    """Start `command`; `stdout` of it yields all its output as text. It has ended when the `with` block is left."""
    contained = contained and bool(shutil.which("unshare"))
    namespaces = ("unshare", "--mount-proc", "--pid", "--kill-child", "--") if contained else ()
    # the kernel sends the signal when the parent is gone; without setpriv the program would run on alone
    guard = ("setpriv", "--pdeathsig", "KILL" if contained else "TERM", "--") if shutil.which("setpriv") else ()
    process = subprocess.Popen(
        [*guard, *namespaces, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=dict(env),
    )
    with _lock:
        _running[process] = contained
    try:
        yield process
        process.wait()
    finally:
        _end(process, contained)
        with _lock:
            _running.pop(process, None)
        if process.stdout:
            process.stdout.close()


def stop_all() -> None:
    """End every running child; their `with` blocks, in whatever thread, then see an exit code and go on."""
    with _lock:
        processes = dict(_running)
    for process in processes:
        process.terminate()
    for process, contained in processes.items():
        _end(process, contained)


def _end(process: subprocess.Popen[str], contained: bool) -> None:
    if process.poll() is not None:
        return
    if not contained:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
            return
    process.kill()
    process.wait()
