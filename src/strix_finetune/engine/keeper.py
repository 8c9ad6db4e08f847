"""Removes a container when the driver that runs it dies, SIGKILL included: nobody else would for hours.

A child of ours waits for the end of a pipe that only we can write to. A word in it means that all is well; its end
without a word, which the kernel brings about however we die, means that the container must go.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strix_finetune.engine.base import EngineInfo

_WELL = b"well\n"
# A private Podman service dies with the driver, whatever is asked of it then: so the program itself is asked last.
_CHILD = """
import http.client, os, signal, socket, subprocess, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
if os.read(0, 16):
    sys.exit(0)
path, name, kind = sys.argv[1:]
try:
    link = http.client.HTTPConnection("localhost", timeout=60)
    link.sock = socket.socket(socket.AF_UNIX)
    link.sock.settimeout(60)
    link.sock.connect(path)
    # Docker's own address of it would make Podman wait ten seconds for the container to end by itself
    own = f"/v4.0.0/libpod/containers/{name}?force=true&timeout=0&v=true"
    link.request("DELETE", own if kind == "podman" else f"/containers/{name}?force=1&v=1")
    gone = link.getresponse().status in (200, 204, 404)
except (OSError, http.client.HTTPException):
    gone = False
if not gone and kind == "podman":
    subprocess.run(["podman", "rm", "--force", "--ignore", "--time", "0", name])
"""


@contextmanager
def kept(name: str, info: EngineInfo) -> Iterator[None]:
    """While this block runs, `name` is removed should we die. Only for an engine at a local socket.

    Elsewhere, and should the child die as well, the next start finds the container by its labels.
    """
    path = info.url.removeprefix("unix://")
    if path == info.url:
        yield
        return
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _CHILD, path, name, info.kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        # what Ctrl-C or a closed terminal ends must not be what cleans up after it
        start_new_session=True,
    )
    assert child.stdin
    try:
        yield
    finally:
        with suppress(OSError):
            os.write(child.stdin.fileno(), _WELL)
        child.stdin.close()
        child.wait()
