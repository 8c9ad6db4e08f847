"""A recipe as the estimate wants it: which backend, how many rows of which length, what is recomputed."""

from __future__ import annotations

from typing import Literal

from strix_train import backends
from strix_train.devicerules import Facts, half_is_too_narrow, has_bf16, rules
from strix_train.errors import InputError
from strix_train.estimate import lean as leanly
from strix_train.estimate.machines import Machine
from strix_train.estimate.memory import Backend, Wish
from strix_train.estimate.shapes import Shape
from strix_train.modelfacts import ModelFacts
from strix_train.recipe.adapter import LowRank
from strix_train.recipe.method import Grpo
from strix_train.recipe.schema import Recipe

# Rows of a forward pass for each row of the recipe, and models beside the one that learns when it learns whole.
_HALVES = {"dpo": 2, "orpo": 2, "reward": 2}
_REFERENCE = ("dpo", "kto")


def backend_of(recipe: Recipe, machine: Machine) -> Backend:
    """Return the backend that the recipe would take on a machine that has both."""
    if recipe.backend != "auto":
        return recipe.backend
    kind, adapter = recipe.method.kind, recipe.adapter.kind
    if backends.unable(kind, adapter) or (adapter == "lora8bit" and not machine.is_gpu):
        return "hf"
    return "unsloth"


def bits_of(recipe: Recipe, machine: Machine, kinds: ModelFacts) -> Literal[16, 32]:
    """Return the bits of the number format."""
    if recipe.precision != "auto":
        return 32 if recipe.precision == "fp32" else 16
    if machine.kind == "cpu":
        return 16 if machine.half else 32
    if has_bf16(machine.arch, True):
        return 16
    return 32 if half_is_too_narrow(kinds) else 16


def wish(
    recipe: Recipe, shape: Shape, machine: Machine, *, backend: Backend | None = None, longest: int | None = None
) -> Wish:
    """Return what a recipe would train on a machine. `longest`: tokens of its longest row, where that is known."""
    schedule, adapter, method = recipe.schedule, recipe.adapter, recipe.method
    chosen = backend or backend_of(recipe, machine)
    family = ModelFacts((shape.kind,), head_width=_widest(shape), experts=any(b.experts for b in shape.blocks))
    low = adapter if isinstance(adapter, LowRank) else None
    length = schedule.max_length
    packed = recipe.data.packing or method.kind in ("cpt", "grpo")
    if longest and not packed:
        length = min(length, longest)
    recompute = machine.is_gpu if recipe.recompute == "auto" else recipe.recompute == "on"
    bits = bits_of(recipe, machine, family)
    targets = frozenset(low.targets) if low and not isinstance(low.targets, str) else None
    whole = adapter.kind == "full"
    lean = _lean(recipe, shape, chosen) and machine.is_gpu and recompute
    return Wish(
        shape=shape,
        adapter=adapter.kind,
        rank=low.r if low else 0,
        backend=chosen,
        rows=schedule.rows * _HALVES.get(method.kind, 1),
        accumulation=schedule.accumulation,
        length=length,
        bits=bits,
        master=2 if adapter.kind == "full" and adapter.weights == "bf16" and bits == 16 else 4,
        recompute=recompute,
        eager=_eager(machine, family, chosen),
        offload=machine.is_gpu and recompute and (chosen == "unsloth" or (lean and not machine.unified)),
        gpu=machine.is_gpu,
        chunked=method.kind != "orpo",
        scores=method.kind == "reward",
        copies=1 if whole and method.kind in _REFERENCE else 0,
        generates=method.max_new_tokens if isinstance(method, Grpo) else 0,
        targets=targets,
        lean=lean,
        packed=bool(recipe.data.packing),
    )


def _lean(recipe: Recipe, shape: Shape, backend: Backend) -> bool:
    """Whether layers are lean where they are recomputed."""
    adapter = recipe.adapter
    low = isinstance(adapter, LowRank) and adapter.kind in leanly.ADAPTERS and not adapter.dropout
    apart = recipe.strategy.kind in ("fsdp", "deepspeed")
    return backend == "hf" and low and not apart and recipe.method.kind != "reward" and leanly.able(shape)


def _widest(shape: Shape) -> int:
    return max((block.queries // block.heads for block in shape.blocks if block.window >= 0), default=0)


def _eager(machine: Machine, family: ModelFacts, backend: Backend) -> bool:
    """Whether attention holds its scores: by a device's rule, or since the model's own has nothing else."""
    if family.is_of("gpt_oss") and backend == "hf":
        return True
    if not machine.is_gpu:
        return False
    try:
        found = rules(Facts(machine.kind, family, machine.arch, (7, 2), (2, 11), 16))
    except InputError:
        return False
    return found.attention == "eager" or not found.flash
