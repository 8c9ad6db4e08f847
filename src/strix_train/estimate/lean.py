"""The peak of a step whose layers are lean (strix_train.lean), by part: counted from what they hold at each moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

# none of them imports torch before it computes
from strix_train.backends import chunkedloss
from strix_train.lean import attend, columns, layer

if TYPE_CHECKING:
    from strix_train.estimate.memory import Wish
    from strix_train.estimate.shapes import Shape

# Families whose layers can be lean.
KINDS = ("llama", "mistral", "qwen2", "qwen3")
ADAPTERS = ("lora", "rslora", "qlora")
# Bytes of attention's own work for each number of all queries: their gradient in 32 bits, those of each head's keys and
# values.
_ATTENTION = 8.0


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes on the device at one moment of a step."""

    activations: float
    logits: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.activations + self.logits + self.gradients + self.optimizer


def able(shape: Shape) -> bool:
    """Whether the layers of a shape can be lean: of a family that can, and seeing all tokens."""
    usual = all(block.window == 0 and not block.experts for block in shape.blocks)
    return shape.kind in KINDS and usual and shape.exact


def peak(wish: Wish) -> tuple[Moment, float]:
    """Return the moment at which a step takes the most, and the bytes that wait in the system's memory then."""
    shape, width, tokens = wish.shape, wish.width, wish.tokens
    some = min(tokens, layer.rows_at_a_time(wish.length) * wish.length)
    block = max(shape.blocks, key=lambda each: each.mlp)
    bits = wish.adapter == "qlora"
    most_at_once = layer.ROWS if bits else layer.TOKENS
    few, several = min(some, most_at_once), tokens > most_at_once
    stream, part, piece = (count * shape.hidden * width for count in (tokens, some, few))
    seen = some * block.queries * width
    heads = some * (block.queries + 2 * block.values) * width
    learned = wish.trainable * wish.learning
    early = learned if wish.accumulation > 1 else 0
    states = 2.0 * learned
    parked = states if wish.offload and wish.parks else 0.0
    waiting = states - parked
    # away: a layer's input, what attention gave, and the sum of both; else the inputs stay
    bundle = 2.0 * part + seen
    kept = bundle if wish.offload else shape.layers * float(stream)
    rows = min(tokens, chunkedloss.fused_at_a_time(chunkedloss.tokens_at_a_time(shape.vocabulary), tokens))
    chunk = rows * (shape.vocabulary + shape.hidden) * width
    # weights of 4 bits are made once for all slices of a layer, where there are several
    made = 2.0 * block.linear_weights if bits and several else 0.0
    through = made + stream * (2.0 if some < tokens else 1.0)
    # where nothing waits elsewhere, what attention gave is made again and is there as well
    mine = bundle if wish.offload else part + seen + heads + part
    if bits:
        # some columns at a time: both products and the gradient, the weights, and three of the layer's width
        wide = columns.at_a_time(block.mlp, several=several)
        gated = 3.0 * piece + 3.0 * few * wide * width + (0.0 if several else 2.0 * wide * shape.hidden * width)
    else:
        gated = 2.0 * piece + 3.0 * few * block.mlp * width
    # what attention takes, gives back, and works with; beside it, the next layer's sum is fetched
    back = attend.few_rows(some // wish.length, wish.length)[0].stop * wish.length * block.queries
    attention = 2.0 * part + 2.0 * seen + 2.0 * heads + _ATTENTION * back + part * wish.offload
    most = through + max(mine + gated, attention)
    loss = Moment(3.0 * stream + kept, 0.0 if wish.scores else chunk, early, waiting)
    last = 0.0 if wish.offload else float(stream)
    moments = (
        loss,
        # the last layer's input is there as a whole
        Moment((stream * (some < tokens) if wish.offload else kept) + most, 0.0, early, waiting),
        Moment(last + most, 0.0, learned, waiting),
        Moment(0.0, 0.0, learned, states),
    )
    away = shape.layers * tokens * (2.0 * shape.hidden + block.queries) * width + parked if wish.offload else 0.0
    return max(moments, key=lambda moment: moment.total), away
