"""FSDP by torch's own fully_shard: each process holds a piece of every weight, gradient and optimizer state.

accelerate turns FSDP into DDP on a CPU without a word, so it has no part in this: the model is sharded before the
trainer sees it, and what is not a DTensor then is an error. Layers are gathered one after the other; embeddings, the
last norm and the output layer stay gathered with the root, since the loss reads the output layer's weight itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from strix_train.distributed import spool
from strix_train.distributed.typed import Typed
from strix_train.errors import TrainError

# What stays gathered: nothing but the layer at work, all weights until the last pass of a step, or frozen weights ever.
Keep = Literal["nothing", "step", "frozen"]


@dataclass(frozen=True, slots=True)
class How:
    """`keep`: see Keep. `quiet`: gradients are summed here until the last pass of a step, and only then sent.

    `narrow`: weights of 32 bits are gathered as bf16.
    """

    keep: Keep = "nothing"
    quiet: bool = True
    narrow: bool = False


def shard(model: Any, device: str, world: int, how: How, dtype: Any = None) -> None:
    """Shard a model in place over all processes. `device`: torch's kind of it. Raises TrainError where it is not.

    `dtype`: torch's type that weights of the model's own get, one layer after the other, None for what they have.
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device, (world,))
    more: dict[str, Any] = {"mesh": mesh}
    if how.narrow:
        more["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    if how.keep == "frozen":
        more["ignored_params"] = {weight for weight in model.parameters() if not weight.requires_grad}
    layers = blocks(model)
    shared = [layer for layer in layers if how.keep != "frozen" or any(it.requires_grad for it in layer.parameters())]
    typed = Typed.of(model, dtype)
    for layer in shared:
        typed.give(layer)
        fully_shard(layer, reshard_after_forward=how.keep == "nothing", **more)
    typed.give(model)
    fully_shard(model, reshard_after_forward=False, **more)
    for layer, following in pairwise(shared):
        layer.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([layer])
    for name in ("generate",):
        if hasattr(model, name):
            register_fsdp_forward_method(model, name)
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    inner._is_fsdp_managed_module = True  # transformers' generate then keeps all processes in step
    proven(weight for weight in model.parameters() if weight.requires_grad)


def apart(model: Any) -> None:
    """Let go of what a pass without gradients has gathered: until then, weights are not the pieces that learn."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def moving(backend: Any) -> None:
    """Tell lean layers, before anything is shared, that their weights come and go."""
    lean = getattr(backend, "lean", None)
    if lean is not None:
        lean.moving()


def blocks(model: Any) -> list[Any]:
    """Return the layers of a model, outermost first found: those that transformers itself never divides."""
    import torch

    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    names = set(getattr(inner, "_no_split_modules", None) or ())
    found = [module for module in model.modules() if type(module).__name__ in names]
    if not found:
        lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and len(module) > 1]
        found = list(max(lists, key=lambda each: sum(weight.numel() for weight in each.parameters()), default=[]))
    inside = {id(below) for module in found for below in module.modules() if below is not module}
    return [module for module in found if id(module) not in inside]


def proven(learning: Iterable[Any]) -> None:
    """Raise TrainError unless every weight that learns is a DTensor, so that nothing trains whole in silence."""
    from torch.distributed.tensor import DTensor

    weights = list(learning)
    whole = [weight for weight in weights if not isinstance(weight, DTensor)]
    if whole:
        what = f"{len(whole)} of {len(weights)} weights that learn are not shared among the processes"
        raise TrainError(what, cure="write strategy: ddp")


def local(tensor: Any) -> Any:
    """Return what this process holds of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def is_sharded(model: Any) -> bool:
    """Whether what learns lies in pieces."""
    return any(hasattr(weight, "to_local") for weight in model.parameters() if weight.requires_grad)


def whole(tensor: Any) -> Any:
    """Return a tensor, gathered where it is in pieces: all processes must ask."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()


def gathered(model: Any, folder: Path | None) -> dict[str, Any]:
    """Return what belongs into a result, one weight after the other; it lies on the disk of `folder`.

    Of an adapter only what learns; of a model its whole state. `folder`: None for a process that only takes part.
    """
    adapter = hasattr(model, "peft_config")
    found: dict[str, Any] = {}
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    names = {name for name, weight in model.named_parameters() if weight.requires_grad or not adapter}
    for name, tensor in model.state_dict().items():
        # buffers belong to a model, and of tied weights one is enough
        if name not in names and (adapter or name in every):
            continue
        value = whole(tensor)
        if folder:
            found[name] = spool.kept(value, folder)
    return found


def fill(weight: Any, value: Any) -> None:
    """Copy a whole tensor into a weight, or this process's piece of it into its piece."""
    import torch

    with torch.no_grad():
        local(weight).copy_(piece(value, weight))


def piece(value: Any, like: Any) -> Any:
    """Return this process's piece of a whole tensor, cut as `like` is: a view of it, wherever it lies."""
    if not hasattr(like, "to_local"):
        return value
    # what fully_shard does: even pieces of the first dimension, of which the last ones may be short or empty
    pieces = value.chunk(like.device_mesh.size(), dim=0)
    rank = like.device_mesh.get_local_rank()
    mine = pieces[rank] if rank < len(pieces) else value[:0]
    if mine.shape != like.to_local().shape:
        raise TrainError(f"a piece has the shape {tuple(like.to_local().shape)}, and should have {tuple(mine.shape)}")
    return mine


def like(value: Any, weight: Any) -> Any:
    """Return a whole tensor as a DTensor cut as `weight` is; it keeps its type, and nothing else of it is copied."""
    from torch.distributed.tensor import DTensor

    mine = piece(value, weight).to(weight.to_local().device, copy=True)
    return DTensor.from_local(
        mine, weight.device_mesh, weight.placements, run_check=False, shape=value.shape, stride=value.stride()
    )


def learning(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield what learns, by the names that a result's files have."""
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not hasattr(model, "peft_config"):
        yield from named.items()
        return
    from peft import get_peft_model_state_dict

    yield from get_peft_model_state_dict(model, state_dict=named).items()
