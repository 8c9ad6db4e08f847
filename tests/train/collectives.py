"""Train with several strategies on two processes and print which collectives of torch were called, with their types.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=… MASTER_PORT=… python collectives.py

Rank 0 prints JSON: strategy → list of [operation, type].
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM


class Watch(TorchDispatchMode):
    """Notes each call of c10d with the types of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, str]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name.startswith(("c10d.", "_c10d_functional.")):
            self.seen |= {(name.split(".")[1].strip("_"), str(tensor.dtype)[6:]) for tensor in _tensors(args)}
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, list | tuple) else []


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))


def steps(wrapped: torch.nn.Module, clip: Callable[[], object]) -> None:
    optimizer = torch.optim.AdamW(wrapped.parameters())
    for _ in range(2):
        ids = torch.randint(0, 64, (2, 8))
        wrapped(input_ids=ids, labels=ids).loss.backward()
        clip()
        optimizer.step()
        optimizer.zero_grad()


def ddp(**options: Any) -> None:
    wrapped = DistributedDataParallel(model(), **options)
    steps(wrapped, lambda: torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0))


def fsdp() -> None:
    wrapped = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=True)
    steps(wrapped, lambda: wrapped.clip_grad_norm_(1.0))
    wrapped.clip_grad_norm_(1.0, norm_type=float("inf"))


def fsdp2(shape: tuple[int, ...]) -> None:
    names = ("replicate", "shard")[-len(shape) :]
    mesh = dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names)
    sharded = model()
    for layer in sharded.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    steps(sharded, lambda: torch.nn.utils.clip_grad_norm_(sharded.parameters(), 1.0))


def objects() -> None:
    dist.all_gather_object([None, None], {"a": 1})
    dist.broadcast_object_list(["a"], src=0)
    dist.barrier()


STRATEGIES: dict[str, Callable[[], None]] = {
    "ddp": ddp,
    "ddp, unused parameters": lambda: ddp(find_unused_parameters=True),
    "fsdp": fsdp,
    "fsdp2": lambda: fsdp2((2,)),
    "fsdp2 in two dimensions": lambda: fsdp2((2, 1)),
    "objects": objects,
}

if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = {}
    for name, strategy in STRATEGIES.items():
        with Watch() as watch:
            strategy()
        found[name] = sorted(watch.seen)
    if os.environ["RANK"] == "0":
        print(json.dumps(found))
    dist.destroy_process_group()
