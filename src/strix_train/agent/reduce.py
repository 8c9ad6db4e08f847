"""An all_reduce across nodes: one process a node, told by a line of JSON what to do, telling how far it is.

Run as a script of its own (see `collective`): what a broken network does to torch ends here.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from typing import Any


def tell(stage: str, **words: Any) -> None:
    print(json.dumps({"stage": stage, **words}), flush=True)


def main() -> None:
    import torch
    import torch.distributed as dist

    tell("imported")
    line = sys.stdin.readline()
    if not line:
        return
    said = json.loads(line)
    backend, rank, world = said["backend"], said["rank"], said["world"]
    limit = timedelta(seconds=max(2.0, said["seconds"] - 1))
    place = "cuda" if backend == "nccl" else "cpu"
    if place == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit("torch sees no GPU in this container")
        torch.cuda.set_device(0)
    tell("meet")
    store = dist.TCPStore(said["address"], said["port"], world, rank == 0, limit)
    tell("group")
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
    small = torch.full((4,), float(rank + 1), device=place)
    dist.all_reduce(small)
    if small.tolist() != [world * (world + 1) / 2] * 4:
        raise SystemExit(f"the sum of all ranks is {small.tolist()}")
    tell("small")
    large = torch.ones(said["size"] // 4, device=place)
    times = []
    for _ in range(3):
        begin = time.monotonic()
        dist.all_reduce(large)
        if place == "cuda":
            torch.cuda.synchronize()
        times.append(time.monotonic() - begin)
    if float(large[0]) != float(world) ** 3:
        raise SystemExit(f"a large sum came out as {float(large[0])}")
    # a ring sends 2 (n - 1) / n of the bytes from each node
    sent = 2 * (world - 1) / world * said["size"]
    dist.barrier()
    dist.destroy_process_group()
    tell("done", seconds=round(min(times), 6), gbit=round(sent * 8 / min(times) / 1e9, 3), torch=torch.__version__)


if __name__ == "__main__":
    main()
