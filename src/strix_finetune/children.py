"""Programs that this process runs and that must not outlive it, whatever ends this process.

A program and all that it started are killed together: a cut power line would give it no chance to clean up either,
so what it leaves is removed by the one who called it. Mounts go with their namespace: root's programs get one here
(`contained`), and mmdebstrap makes its own for everyone else.
"""

from __future__ import annotations

import atexit
import contextlib
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence

# the kernel sends TERM to the shell when this process is gone; the shell then kills the whole session of the program
_SESSION = """
trap '[ -z "$!" ] || kill -KILL "-$!" "$!"; exit 143' TERM
setsid -- "$@" &
wait "$!"
"""
_CONTAINED = ("setpriv", "--pdeathsig", "KILL", "--", "unshare", "--mount-proc", "--pid", "--kill-child", "--")
_PLAIN = ("setpriv", "--pdeathsig", "TERM", "--", "sh", "-c", _SESSION, "sh")
_lock = threading.Lock()
_running: dict[subprocess.Popen[str], bool] = {}


@contextlib.contextmanager
def child(command: Sequence[str], *, env: Mapping[str, str], contained: bool) -> Iterator[subprocess.Popen[str]]:
    """Start `command`; `stdout` of it yields all its output as text. It has ended when the `with` block is left."""
    process = subprocess.Popen(
        [*(_CONTAINED if contained else _PLAIN), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=dict(env),
    )
    with _lock:
        _running[process] = contained
        # a program that ends does not wait for its daemon threads, and their blocks are not left then
        atexit.unregister(stop_all)
        atexit.register(stop_all)
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
    for process, contained in processes.items():
        _end(process, contained)


def _end(process: subprocess.Popen[str], contained: bool) -> None:
    if process.poll() is not None:
        return
    if contained:
        process.kill()
    else:
        process.terminate()
    process.wait()
