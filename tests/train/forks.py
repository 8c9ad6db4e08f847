"""A process that has imported what training needs, and runs `train` in forked children: each dies its own death.

    python forks.py BACKEND

Reads one JSON object a line: {"words": […], "kill": null | {"signal": 9, "seconds": 0.5} | {"signal": 9, "step": 7,
"metrics": path}}. Writes one for each child: {"code": …, "out": …, "err": …, "seconds": …, "alive": whether the signal
found it alive}. The libraries take many seconds to import and a tiny run two, so that a test can kill often.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

_LONGEST = 300.0


def serve(backend: str, answer: Callable[..., dict[str, Any]]) -> None:
    """Import what a backend trains with, and answer each line of standard input."""
    from strix_train import environment

    environment.prepare(offline=True)
    from strix_train import backends

    with tempfile.TemporaryFile() as noise:
        kept = os.dup(1)
        os.dup2(noise.fileno(), 1)
        backends.start(backends.Choice(backend, "", True))
        import datasets  # noqa: F401
        import peft  # noqa: F401
        import torch.distributed.fsdp  # noqa: F401
        import transformers.trainer  # noqa: F401

        sys.stdout.flush()
        os.dup2(kept, 1)
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)


def one(words: list[str], kill: dict[str, Any] | None = None) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            run(words, out.fileno(), err.fileno())
        alive, status = False, None
        while status is None:
            now = time.monotonic() - began
            if kill and not alive and due(kill, now):
                os.kill(child, kill["signal"])
                alive = True
            if now > _LONGEST:
                os.kill(child, signal.SIGKILL)
            pid, found = os.waitpid(child, os.WNOHANG)
            status = found if pid else None
            time.sleep(0.002)
        texts = [read(stream) for stream in (out, err)]
    # a child that had ended already when the signal was sent was not hit by it
    hit = alive and (kill is None or kill["signal"] != signal.SIGKILL or os.WIFSIGNALED(status))
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "out": texts[0], "err": texts[1], "seconds": time.monotonic() - began, "alive": hit}


def read(stream: IO[bytes]) -> str:
    """What was written to a file that is still open."""
    stream.seek(0)
    return stream.read().decode()


def due(kill: dict[str, Any], now: float) -> bool:
    if "seconds" in kill:
        return bool(now >= kill["seconds"])
    path = Path(kill["metrics"])
    return path.is_file() and len(path.read_bytes().splitlines()) >= kill["step"]


def run(words: list[str], out: int, err: int) -> None:
    """Be a `train` process; never return."""
    code = 70
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        from strix_train.__main__ import main as train

        code = train(words)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1], one)
