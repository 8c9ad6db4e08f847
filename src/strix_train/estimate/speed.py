"""Time of a step: what is multiplied, what attention computes, what small kernels move, and what starting them takes.

A GPU does one after the other, so that their times add up; beside them a process starts kernels from Python, and what
is put away is copied, and the longest of the three is what a layer takes. Shares and counts are of an H200, where
profiles told them apart (docs/estimate.md); other machines multiply and move at their own peaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from strix_train.estimate.machines import Machine
from strix_train.estimate.memory import Wish
from strix_train.estimate.shapes import Block

Way = Literal["plain", "unsloth", "lean"]
# Operations of attention's backward pass, for one of its forward pass.
_BACK = 2.5
# Bytes of the 16-bit logits of one chunk of the loss (backends.chunkedloss).
_CHUNK = 2**27
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine reaches of its peaks, and what its host takes.

    Of the rate of large products: `narrow`: attention of heads of up to 128 numbers, `wide`: of wider ones, `masked`:
    with a mask, which computes what nobody sees as well. Of the memory's rate: `plain`: PyTorch's own small kernels,
    `unsloth` and `lean`: theirs, `made`: weights made of fewer bits (`lean_made`: by
    our own kernel), `straight`: what goes through all weights.
    `start`: seconds to start an operation from Python, its part in autograd included; `unsloth_starts` and
    `lean_starts`: how many a layer has; `turn`: seconds between two passes.
    """

    narrow: float = 0.70
    wide: float = 0.42
    masked: float = 0.20
    plain: float = 0.52
    unsloth: float = 0.50
    lean: float = 0.73
    made: float = 0.35
    lean_made: float = 0.61
    straight: float = 0.80
    start: float = 49e-6
    unsloth_starts: float = 70
    lean_starts: float = 30
    turn: float = 0.012

    def moved(self, which: Way) -> float:
        """Share of the memory's rate of small kernels."""
        return {"plain": self.plain, "unsloth": self.unsloth, "lean": self.lean}[which]


RATES = Rates()


@dataclass(frozen=True, slots=True)
class Speed:
    """`seconds` of an optimizer step, `tokens` in it; `bound`: 'products', 'launches' or 'copies', for its layers."""

    seconds: float
    tokens: int
    bound: str

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0


def way(wish: Wish) -> Way:
    """Return whose kernels a layer is computed by."""
    return "unsloth" if wish.backend == "unsloth" else "lean" if wish.lean else "plain"


def of(wish: Wish, machine: Machine, rates: Rates = RATES) -> Speed | None:
    """Return how fast a step is, None where nothing is known about the machine."""
    if not machine.peak:
        return None
    total = wish.tokens * wish.accumulation
    if not machine.is_gpu:
        operations = _outer(wish) + sum(block.count * sum(_inner(wish, block)) for block in wish.shape.blocks)
        return Speed(wish.accumulation * operations / machine.peak, total, "products")
    rate = machine.peak * machine.share * (0.5 if wish.bits == 32 else 1.0)
    host = rates.start * machine.launch
    launches = host * sum(block.count * _started(wish, block, rates) for block in wish.shape.blocks)
    layers = {
        "products": sum(block.count * _layer(wish, block, machine, rate, rates) for block in wish.shape.blocks),
        "launches": launches * (1 + _passes(wish)),
        "copies": _put_away(wish) / machine.link,
    }
    bound = max(layers, key=lambda name: layers[name])
    seconds = layers[bound]
    if wish.adapter == "lora8bit":
        # each product asks the GPU whether there are outliers, and waits for the answer
        seconds = layers["products"] + layers["launches"]
    straight = machine.bandwidth * rates.straight
    seconds += _outer(wish) / rate + _loss(wish) / straight + rates.turn * machine.launch
    if wish.generates:
        # every new token reads all weights once, for all rows of the pass together, and is started layer by layer
        seconds += wish.generates * max(launches, 2.0 * wish.shape.weights / straight)
    # weights, gradients and both moments are read and written, and the gradients' norm is taken
    learned = wish.trainable * 10 * wish.learning / straight
    if wish.lean and wish.offload and wish.parks:
        learned += 2 * wish.trainable * wish.learning / machine.link
    return Speed(seconds * wish.accumulation + learned, total, bound)


def _passes(wish: Wish) -> int:
    """Return how often a layer is computed forward."""
    return 2 if wish.recompute else 1


def _layer(wish: Wish, block: Block, machine: Machine, rate: float, rates: Rates) -> float:
    """Return the seconds of the GPU's own work in one layer, forward and backward."""
    products, attention = _inner(wish, block)
    moved = wish.tokens * _moved(wish, block) / (machine.bandwidth * rates.moved(way(wish)))
    made = rates.lean_made if wish.lean else rates.made
    weights = 2.6 * _made(wish, block) / made + _through(wish, block) / rates.straight
    return (products + attention / _kernel(wish, block, rates)) / rate + moved + weights / machine.bandwidth


def _inner(wish: Wish, block: Block) -> tuple[float, float]:
    """Return the operations of the products in one layer, and of its attention."""
    whole, times = wish.adapter == "full", float(_passes(wish))
    linear = block.linear_weights * (times + (2 if whole else 1)) + block.active * (times + (2 if whole else 1))
    seen = times + _BACK
    if wish.lean:
        # the last product is not computed again, nor, where they were put away, what attention took and gave
        spared = ("down_proj", *_ATTENTION) if wish.offload else ("down_proj",)
        linear -= sum(each.inputs * each.outputs for each in block.linears if each.name in spared)
        seen -= 1 if wish.offload else 0
    reach = 128.0 if block.window < 0 else wish.length / (1 if _masked(wish, block) or wish.eager else 2)
    return 2.0 * linear * wish.tokens, 4.0 * block.queries * reach * seen * wish.tokens


def _masked(wish: Wish, block: Block) -> bool:
    """Whether attention is told by a mask what each token sees."""
    return 0 < block.window < wish.length


def _kernel(wish: Wish, block: Block, rates: Rates) -> float:
    """Return the share of the rate of large products that attention reaches."""
    if wish.eager or block.window < 0:
        return 1.0
    if _masked(wish, block):
        return rates.masked
    return rates.narrow if block.queries <= 128 * block.heads else rates.wide


def _moved(wish: Wish, block: Block) -> float:
    """Return the bytes a token that small kernels read and write in one layer, forward and backward."""
    hidden, times, wide = wish.shape.hidden, _passes(wish), wish.width / 2
    turned = block.queries + block.values if block.window >= 0 else block.queries
    normed = block.norms * hidden + (turned if block.head_norms else 0)
    if way(wish) != "plain":
        # a kernel each: norms, turns, the gate, sums
        found = normed * (4 * times + 8) + turned * (4 * times + 4) + block.mlp * (6 * times + 12)
        return wide * (found + 12 * hidden * times)
    # several kernels each, norms in 32 bits
    found = normed * (36 * times + 64) + turned * (18 * times + 18) + block.mlp * (10 * times + 18)
    found += 2 * hidden * (6 * times + 4) * (2 if wish.adapter == "full" and wish.master == 4 else 1)
    inputs, outputs = sum(each.inputs for each in block.linears), sum(each.outputs for each in block.linears)
    if wish.adapter == "full":
        # what five products take is narrowed for each, and its gradient is widened
        found += 5 * hidden * (6 * times + 6) if wish.master == 4 and wish.bits == 16 else 0
    else:
        # the adapter's two products, its scale, and the sum
        found += outputs * (12 * times + 8) + inputs * (2 * times + 10)
    if wish.adapter == "lora8bit":
        # rows are narrowed to 8 bits, products come in 32
        found += 14 * times * (outputs + inputs)
    scores = block.heads * wish.length * (22 * times + 40) if wish.eager and block.window >= 0 else 0
    return wide * (found + scores)


def _made(wish: Wish, block: Block) -> float:
    """Return how many weights are made of fewer bits in one layer."""
    times = _passes(wish)
    if wish.lean and wish.adapter == "qlora":
        # forward and backward; those of attention once more, where that is computed again
        again = sum(each.inputs * each.outputs for each in block.linears if each.name in _ATTENTION)
        return 2 * block.linear_weights + (0 if wish.offload else again)
    return block.linear_weights * (times + 1 if wish.adapter == "qlora" else 2 if wish.adapter == "lora8bit" else 0)


def _through(wish: Wish, block: Block) -> float:
    """Return the bytes of what is done to all weights of one layer that learn whole: narrowed, gradients added up."""
    if wish.adapter != "full":
        return 0.0
    each = 6 * _passes(wish) + 6 if wish.master == 4 and wish.bits == 16 else 0
    each += 3 * wish.learning if wish.accumulation > 1 else 0
    return float(each * (block.linear_weights + block.experts))


def _outer(wish: Wish) -> float:
    """Return the operations of the output layer; its recomputation is in the loss."""
    return 0.0 if wish.scores else 2.0 * wish.shape.head * wish.tokens * (3 if wish.adapter == "full" else 2)


def _loss(wish: Wish) -> float:
    """Return the bytes of a loss and, where the output layer learns, of the sum of its gradients over chunks."""
    if wish.scores:
        return 0.0
    vocabulary, chunked = wish.shape.vocabulary, wish.chunked and wish.bits == 16
    found = wish.tokens * vocabulary * (12.0 if chunked else 60.0)
    if wish.adapter == "full" and wish.backend == "hf" and chunked:
        chunk = max(16, _CHUNK // (2 * vocabulary))
        found += 12.0 * wish.shape.head * ceil(wish.tokens / chunk)
    return found


def _put_away(wish: Wish) -> float:
    """Return the bytes that are copied to the system's memory and back."""
    if not wish.offload:
        return 0.0
    shape, wide = wish.shape, wish.width
    numbers = sum(block.count * 2 * (shape.hidden + block.queries + block.values) for block in shape.blocks)
    return 2.0 * wish.tokens * wide * (numbers if wish.lean else shape.layers * shape.hidden)


def _started(wish: Wish, block: Block, rates: Rates) -> float:
    """Return the operations that Python starts in one layer, forward."""
    which = way(wish)
    if which != "plain":
        return rates.unsloth_starts if which == "unsloth" else rates.lean_starts
    adapted = 0 if wish.adapter == "full" else 6
    found = 6 * (block.norms + (2 if block.head_norms else 0)) + len(block.linears) * (1 + adapted) + 19
    return found + len(block.linears) * (3 if wish.adapter == "lora8bit" else 1 if wish.adapter == "full" else 0)
