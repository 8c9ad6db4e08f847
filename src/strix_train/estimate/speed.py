"""Time of a step: the products that it computes over what the machine multiplies, or what starting kernels takes.

A layer is started in Python, once a pass and again where it is computed again; a GPU that is done with it sooner waits.
Both figures are from runs on an H200 (docs/benchmarks.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from strix_train.estimate.machines import Machine
from strix_train.estimate.memory import Wish

# Seconds that a layer takes to start, forward and backward, on that machine's host.
_LAUNCH = {"unsloth": 0.0110, "hf": 0.0169}
_FOUR_BITS = 1.06


@dataclass(frozen=True, slots=True)
class Speed:
    """`seconds` of an optimizer step, `tokens` in it; `bound`: 'products' or 'launches'."""

    seconds: float
    tokens: int
    bound: str

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0


def operations(wish: Wish) -> float:
    """Return the operations of one forward and backward pass."""
    shape, tokens = wish.shape, wish.tokens
    whole = wish.adapter == "full"
    passes = 2 + (2 if whole else 1) - 1 + (1 if wish.recompute else 0)  # forward, to inputs, to weights, again
    inner = 2.0 * shape.active * tokens * passes
    # frozen, the output layer is gone through forward and back, and its recomputation is in the loss
    outer = 0.0 if wish.scores else 2.0 * shape.head * tokens * (3 if whole else 2)
    seen = 0.0
    for block in shape.blocks:
        reach = wish.length if block.window <= 0 else min(wish.length, 2 * block.window)
        if block.window < 0:
            reach = 128  # chunks of a delta rule
        seen += block.count * 4.0 * block.queries * reach / 2
    attention = seen * tokens * (1 + 2 + (1 if wish.recompute else 0))
    return inner + outer + attention - (_not_again(wish, seen) if wish.lean else 0.0)


def _not_again(wish: Wish, seen: float) -> float:
    """Return the operations that lean layers leave out of what they compute again. `seen`: attention's of one token."""
    spared = 0.0
    for block in wish.shape.blocks:
        names = ("down_proj", "o_proj") if wish.offload else ("down_proj",)
        spared += block.count * 2.0 * sum(each.inputs * each.outputs for each in block.linears if each.name in names)
    return wish.tokens * (spared + (seen if wish.offload else 0.0))


def of(wish: Wish, machine: Machine) -> Speed | None:
    """Return how fast a step is, None where nothing is known about the machine."""
    if not machine.peak:
        return None
    share = machine.share[0 if wish.backend == "unsloth" else 1]
    peak = machine.peak * (0.5 if wish.bits == 32 and machine.is_gpu else 1.0)
    products = operations(wish) / (peak * share)
    if wish.adapter in ("qlora", "lora8bit"):
        products *= _FOUR_BITS
    launches = wish.shape.layers * _LAUNCH[wish.backend] * machine.launch if machine.is_gpu else 0.0
    seconds = max(products, launches)
    if wish.generates:
        # every new token reads all weights once, for all rows of the pass together, and is started layer by layer
        seconds += wish.generates * wish.shape.layers * _LAUNCH[wish.backend] * machine.launch / 8
    total = seconds * wish.accumulation
    return Speed(total, wish.tokens * wish.accumulation, "products" if products >= launches else "launches")
