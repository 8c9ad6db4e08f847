"""One rank of `python -m bench cluster-cost`: real steps of a small model over gloo, as told on stdin, line by line.

Each line is a JSON object; each is answered by rank 0 with one. Needs torch, transformers and peft. RANK, WORLD_SIZE,
and HEAD and ADDRESS (where rank 0 listens as address:port, and this rank's own address) are in the environment.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import statistics
import struct
import sys
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

PROBE = 29612
CHUNK = bytes(2**20)


def model(told: dict[str, Any]) -> torch.nn.Module:
    """Return the model, the same one on every rank."""
    torch.manual_seed(1)
    # what config.json says is what the estimate reads; attention and loss are plain
    found: torch.nn.Module = LlamaForCausalLM(LlamaConfig(**told["config"], attn_implementation="sdpa"))
    if told["adapter"] == "lora":
        found = get_peft_model(found, LoraConfig(r=told["rank"], target_modules="all-linear"))
    return found.train()


def shared(whole: torch.nn.Module, sharing: str, bucket: float) -> torch.nn.Module:
    """Return the model as it is shared. `bucket`: MiB that DDP sends at once."""
    if sharing == "ddp":
        return DistributedDataParallel(whole, bucket_cap_mb=bucket)
    inner: Any = whole.get_base_model() if hasattr(whole, "get_base_model") else whole
    for layer in inner.model.layers:
        fully_shard(layer)
    fully_shard(whole)
    assert all(isinstance(each, DTensor) for each in whole.parameters()), "nothing was shared"
    return whole


def measure(told: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of the quickest step alone and shared, and the bytes that this rank sent in one.

    Both kinds take turns, and the quickest counts: whatever else a machine does only ever makes steps longer.
    """
    rows = torch.randint(0, told["config"]["vocab_size"], (told["rows"], told["length"]))
    ready = {"alone": model(told), "shared": shared(model(told), told["sharing"], told["bucket"])}
    optimizers = {
        name: torch.optim.AdamW([each for each in found.parameters() if each.requires_grad], lr=1e-4)
        for name, found in ready.items()
    }
    times: dict[str, list[float]] = {"alone": [], "shared": []}
    sent = []
    for at in range(told["steps"] + 1):
        for name, found in ready.items():
            dist.barrier()
            before, began = counted(), time.perf_counter()
            step(found, optimizers[name], rows, told["accumulation"])
            # the first one makes buckets and buffers
            if at:
                times[name].append(time.perf_counter() - began)
        sent.append(counted() - before)
    return {**{name: min(found) for name, found in times.items()}, "sent": statistics.median(sent[1:])}


def step(ready: torch.nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor, accumulation: int) -> None:
    """Do an optimizer step."""
    for at in range(accumulation):
        quiet = isinstance(ready, DistributedDataParallel) and at < accumulation - 1
        with ready.no_sync() if quiet else nullcontext():
            ready(input_ids=rows, labels=rows).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def counted() -> int:
    """Return the bytes that this process has given to its sockets, each once, headers left out.

    Those that the others have acknowledged, and those that they have not: some of a step's last ones are under way when
    it ends. What the kernel counts as sent has bytes twice that a full queue of this machine has refused.
    """
    total = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            if each.readlink().name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(each.name))) as found:
                    total += _given(found)
        except (OSError, struct.error):
            continue  # closed meanwhile, or no TCP
    return total


def _given(found: socket.socket) -> int:
    """Return the bytes that were given to a TCP socket."""
    while True:
        before = _acknowledged(found)
        waiting = struct.unpack("i", fcntl.ioctl(found, termios.TIOCOUTQ, bytes(4)))[0]
        after = _acknowledged(found)
        if before == after:
            return int(after + waiting)


def _acknowledged(found: socket.socket) -> int:
    # of linux/tcp.h: tcpi_bytes_acked, of 64 bits, stands at byte 120 of struct tcp_info
    info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
    return int(struct.unpack_from("Q", info, 120)[0])


def probe(told: dict[str, Any]) -> dict[str, float]:
    """Return Gbit/s of one TCP connection from rank 0 to rank 1, and the microseconds of a byte there and back."""
    rank = dist.get_rank()
    if rank > 1:
        dist.barrier()
        return {}
    with socket.create_server((os.environ["ADDRESS"], PROBE)) if rank else nullcontext() as server:
        dist.barrier()
        wire = server.accept()[0] if server else socket.create_connection((told["to"], PROBE), timeout=30)
        with wire:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _asks(wire, told["mib"]) if rank == 0 else _answers(wire, told["mib"])


def _asks(wire: socket.socket, mib: int) -> dict[str, float]:
    trips = []
    for _ in range(200):
        began = time.perf_counter()
        wire.sendall(b"x")
        wire.recv(1)
        trips.append(time.perf_counter() - began)
    began = time.perf_counter()
    for _ in range(mib):
        wire.sendall(CHUNK)
    wire.recv(1)
    seconds = time.perf_counter() - began
    return {"gbit": mib * len(CHUNK) * 8 / seconds / 1e9, "round_trip": statistics.median(trips) * 1e6}


def _answers(wire: socket.socket, mib: int) -> dict[str, float]:
    for _ in range(200):
        wire.recv(1)
        wire.sendall(b"x")
    left = mib * len(CHUNK)
    while left:
        left -= len(wire.recv(min(left, len(CHUNK))))
    wire.sendall(b"x")
    return {}


def serve(works: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]) -> None:
    """Do what each line says, by the work that it names; rank 0 answers."""
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"tcp://{os.environ['HEAD']}", rank=rank, world_size=ranks)
    for line in sys.stdin:
        told = json.loads(line)
        found = works[told.pop("work")](told)
        if rank == 0:
            print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    serve({"measure": measure, "probe": probe})
