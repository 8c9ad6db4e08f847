"""Whether a run fits, and the least that must change so that it does. Every proposal is itself estimated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from strix_train.errors import InputError
from strix_train.estimate import memory, request, speed
from strix_train.estimate.machines import Machine
from strix_train.estimate.memory import Backend, Parts, Wish
from strix_train.estimate.shapes import Shape
from strix_train.recipe.load import Loaded
from strix_train.recipe.load import load as load_recipe
from strix_train.recipe.schema import Recipe

# What the allocator cannot fill, as a share of what comes and goes.
_SLACK = 0.05
# Bytes of a process on a CPU that has the libraries loaded, and what their buffers grow to (docs/estimate.md).
_LIBRARIES, _BUFFERS = int(0.5 * 2**30), int(0.22 * 2**30)


@dataclass(frozen=True, slots=True)
class Estimate:
    """`needed`: bytes of the device's memory, what the allocator cannot fill and what a process takes included."""

    wish: Wish
    parts: Parts
    needed: int
    speed: speed.Speed | None

    def fits(self, machine: Machine) -> bool:
        """Whether a machine has that much."""
        return self.needed <= machine.usable


@dataclass(frozen=True, slots=True)
class Verdict:
    """`settings`: KEY=VALUE of what would have to change; `after`: the estimate with them."""

    kind: Literal["fits", "fits with", "does not fit"]
    settings: tuple[str, ...] = ()
    after: Estimate | None = None


def estimate(wish: Wish, machine: Machine) -> Estimate:
    """Return what a run takes on a machine."""
    found = memory.parts(wish)
    return Estimate(wish, found, needed(found, machine), speed.of(wish, machine))


def needed(found: Parts, machine: Machine) -> int:
    """Return the bytes that a process with these parts takes of a machine."""
    slack = _SLACK * (found.activations + found.logits)
    if not machine.is_gpu:
        slack += _LIBRARIES + min(_BUFFERS, found.total // 3)
    shared = found.offloaded if machine.unified else 0
    return int(found.total + slack + shared)


def of_recipe(
    recipe: Recipe, shape: Shape, machine: Machine, *, backend: Backend | None = None, longest: int | None = None
) -> Estimate:
    """Return what a recipe takes on a machine."""
    return estimate(request.wish(recipe, shape, machine, backend=backend, longest=longest), machine)


def verdict(
    loaded: Loaded, settings: Sequence[str], shape: Shape, machine: Machine, *, longest: int | None = None
) -> Verdict:
    """Return whether a recipe fits a machine, or the first of the usual changes with which it does."""
    now = of_recipe(loaded.recipe, shape, machine, longest=longest)
    if now.fits(machine):
        return Verdict("fits", (), now)
    for same, more in _ways(loaded.recipe, machine):
        try:
            other = load_recipe(loaded.path, [*settings, *more]).recipe
        except InputError:
            continue
        after = of_recipe(other, shape, machine, longest=longest)
        if after.fits(machine):
            return Verdict("fits with" if same else "does not fit", more, after)
    return Verdict("does not fit")


def _ways(recipe: Recipe, machine: Machine) -> Iterator[tuple[bool, tuple[str, ...]]]:
    """Yield changes, the least first, and whether training stays what it was but for its speed."""
    mild = [*_milder(recipe, machine)]
    for more in mild:
        yield True, more
    least = mild[-1] if mild else ()
    lengths = []
    length = recipe.schedule.max_length
    while length >= 1024:
        length //= 2
        lengths.append(f"schedule.max_length={length}")
    for adapter in _smaller(recipe):
        yield False, (adapter,)
        for more in mild:
            yield False, (adapter, *more)
    for shorter in lengths:
        yield False, (shorter, *least)
        for adapter in _smaller(recipe):
            yield False, (adapter, shorter, *least)


def _milder(recipe: Recipe, machine: Machine) -> Iterator[tuple[str, ...]]:
    """Yield changes after which every step still sees the same rows."""
    recomputed = machine.is_gpu if recipe.recompute == "auto" else recipe.recompute == "on"
    first = () if recomputed else ("recompute=on",)
    if first:
        yield first
    batch, accumulation = recipe.schedule.rows, recipe.schedule.accumulation
    least = 2 if recipe.method.kind == "kto" else 1
    for fewer in range(batch - 1, least - 1, -1):
        if batch * accumulation % fewer == 0:
            yield (*first, f"schedule.batch={fewer}", f"schedule.accumulation={batch * accumulation // fewer}")


def _smaller(recipe: Recipe) -> Iterator[str]:
    """Yield adapters that take less memory, the nearest first."""
    adapter = recipe.adapter
    if adapter.kind == "full":
        if adapter.weights == "fp32":
            yield "adapter={kind: full, weights: bf16}"
        yield "adapter=lora"
    if adapter.kind in ("full", "lora", "rslora", "dora"):
        rank = "" if adapter.kind == "full" else f", r: {adapter.r}, alpha: {adapter.alpha}"
        yield "adapter={kind: lora8bit" + rank + "}"
    if adapter.kind != "qlora":
        rank = "" if adapter.kind == "full" else f", r: {adapter.r}, alpha: {adapter.alpha}"
        yield "adapter={kind: qlora" + rank + "}"


def largest_batch(wish: Wish, machine: Machine, rows: int, least: int = 1) -> int:
    """Return the largest number of rows of a pass, a divisor of `rows` from `least` on, that fits; else the smallest.

    `wish` is for one row.
    """
    ways = [each for each in range(min(4096, rows), 0, -1) if rows % each == 0 and each >= least] or [1]
    for batch in ways:
        if estimate(replace(wish, rows=wish.rows * batch, accumulation=rows // batch), machine).fits(machine):
            return batch
    return ways[-1]
