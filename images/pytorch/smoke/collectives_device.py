#!/usr/bin/env python3
"""torch.distributed sums over the GPUs of this machine by RCCL, and the sums are right; on one GPU, over one rank."""

import os
import sys
from pathlib import Path

NOT_HERE = 77
COUNT = 1 << 20

if not Path("/dev/kfd").exists():
    print("not shown: there is no /dev/kfd, so no AMD GPU in this container")
    sys.exit(NOT_HERE)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as workers  # noqa: E402


def work(rank: int, world: int) -> None:
    """One process on one GPU. Exits with a sentence when a sum is wrong."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29541", rank=rank, world_size=world)
    for kind in (torch.float32, torch.bfloat16, torch.int64):
        values = torch.full((COUNT,), rank + 1, device="cuda", dtype=kind)
        dist.all_reduce(values)
        expected = sum(range(1, world + 1))
        if not bool((values == expected).all()):
            sys.exit(f"rccl: all_reduce of {kind} over {world} ranks gives {values.unique().tolist()[:5]}")
    whole = torch.full((COUNT * world,), rank + 1.0, device="cuda")
    part = torch.empty(COUNT, device="cuda")
    dist.reduce_scatter_tensor(part, whole)
    if not bool((part == sum(range(1, world + 1))).all()):
        sys.exit(f"rccl: reduce_scatter over {world} ranks gives {part.unique().tolist()[:5]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    if torch.version.hip is None:
        print(f"not shown: torch {torch.__version__} is built without GPU support")
        sys.exit(NOT_HERE)
    if not torch.cuda.is_available():
        sys.exit("rccl: /dev/kfd is here, and torch.cuda.is_available() is False")
    count = torch.cuda.device_count()
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    workers.spawn(work, args=(count,), nprocs=count)
    version = ".".join(map(str, torch.cuda.nccl.version()))
    print(f"RCCL {version}: all_reduce and reduce_scatter are right on {count} rank(s)")
