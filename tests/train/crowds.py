"""A process that has imported what training needs, and runs `train` as several ranks: each is a forked child.

    python crowds.py BACKEND

Reads one JSON object a line: {"ranks": [{"words": […], "env": {…}}, …], "kill": null | {"rank": 1, "signal": 9,
"step": 3, "metrics": path}}. Writes {"ranks": [{"code", "out", "err"}, …], "seconds": …, "after": seconds from the
kill to the end of the last rank}. The variables are those that torchrun sets; nobody ends the others but themselves.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import forks

_LONGEST = 120.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def crowd(ranks: list[dict[str, Any]], kill: dict[str, Any] | None = None) -> dict[str, Any]:
    port, began, children = free_port(), time.monotonic(), []
    for rank, wish in enumerate(ranks):
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - read when all have ended
        child = os.fork()
        if child == 0:
            ours = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(ranks), "MASTER_PORT": port}
            os.environ |= {name: str(value) for name, value in ours.items()} | {"MASTER_ADDR": "127.0.0.1"}
            os.environ |= wish.get("env") or {}
            if "STRIX_TEST_PATH" in os.environ:
                sys.path.insert(0, os.environ["STRIX_TEST_PATH"])
            for name, change in CHANGES.items():
                if name in os.environ:
                    change()
            forks.run(wish["words"], out.fileno(), err.fileno())
        children.append((child, out, err))
    codes: dict[int, int] = {}
    killed = 0.0
    while len(codes) < len(children):
        if kill and not killed and forks.due(kill, time.monotonic() - began):
            os.kill(children[kill["rank"]][0], kill["signal"])
            killed = time.monotonic()
        for child, _, _ in children:
            if child not in codes:
                if time.monotonic() - began > _LONGEST:
                    os.kill(child, signal.SIGKILL)
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    codes[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    found = []
    for child, out, err in children:
        with out, err:
            found.append({"code": codes[child], "out": forks.read(out), "err": forks.read(err)})
    now = time.monotonic()
    return {"ranks": found, "seconds": now - began, "after": now - killed if killed else 0.0}


def still() -> None:
    """Move no model to its device, as it is with one whose weights bitsandbytes holds."""
    from transformers import Trainer

    Trainer._move_model_to_device = lambda *_: None


def spooled() -> None:
    """Let the smallest tensor that is gathered lie on the disk, as the large ones of real models do."""
    from strix_train.distributed import spool

    spool.__dict__["_LEAST"] = 1


def no_whole() -> None:
    """Fail where a weight outlives its being cut into pieces: somebody holds it, and its memory."""
    import gc
    import weakref

    from strix_train.methods import loop

    alive: dict[str, Any] = {}
    shard, ordered = loop.shards.shard, loop.evenly.ordered

    def sharding(model: Any, *words: Any) -> None:
        alive.update((name, weakref.ref(weight)) for name, weight in model.named_parameters())
        shard(model, *words)

    def after(*words: Any) -> Any:
        gc.collect()
        held = [name for name, weight in alive.items() if weight() is not None]
        if held or not alive:
            raise RuntimeError(f"{len(held)} of {len(alive)} whole weights are alive: {held[:3]}")
        return ordered(*words)

    loop.shards.shard, loop.evenly.ordered = sharding, after


def sparing() -> None:
    """Fail where DDP sends a frozen weight when it begins, or summed gradients lie beside what was sent."""
    from torch.nn.parallel import DistributedDataParallel
    from transformers import Trainer

    from strix_train.methods import result

    wrap, clip, gathered = DistributedDataParallel.__init__, Trainer._clip_grad_norm, result._gathered
    steps = []

    def wrapping(self: Any, model: Any, *words: Any, **more: Any) -> None:
        wrap(self, model, *words, **more)
        frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
        if not frozen or not frozen <= self.parameters_to_ignore:
            raise RuntimeError(f"of {len(frozen)} frozen weights, {len(frozen - self.parameters_to_ignore)} were sent")

    def clipping(self: Any, model: Any) -> Any:
        grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
        rooms = {grad.untyped_storage().data_ptr() for grad in grads}
        if len(rooms) >= len(grads):
            raise RuntimeError(f"{len(grads)} gradients lie in {len(rooms)} places")
        steps.append(len(grads))
        return clip(self, model)

    def ended(*words: Any) -> Any:
        if not steps:
            raise RuntimeError("no step was looked at")
        return gathered(*words)

    DistributedDataParallel.__init__, Trainer._clip_grad_norm, result._gathered = wrapping, clipping, ended


def late() -> None:
    """Let this process meet the others, and take its time until it can be talked to."""
    from strix_train.distributed import places

    usual = places.group

    def group(*words: Any) -> None:
        time.sleep(4)
        usual(*words)

    places.group = group


def drifted() -> None:
    """Let this process's weights be others at the end, as if it had trained by itself."""
    from strix_train.methods import result

    usual = result._gathered

    def gathered(job: Any, model: Any, trainer: Any) -> Any:
        for weight in model.parameters():
            if weight.requires_grad:
                weight.data.mul_(1.001)
        return usual(job, model, trainer)

    result._gathered = gathered


# What a test lets a process do otherwise, by a variable of it.
CHANGES: dict[str, Callable[[], None]] = {
    "STRIX_TEST_STILL": still,
    "STRIX_TEST_SPOOL": spooled,
    "STRIX_TEST_WHOLE": no_whole,
    "STRIX_TEST_SPARING": sparing,
    "STRIX_TEST_LATE": late,
    "STRIX_TEST_DRIFT": drifted,
}


if __name__ == "__main__":
    forks.serve(sys.argv[1], crowd)
