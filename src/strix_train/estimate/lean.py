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
    # what each layer leaves on the device: its last adapter's middle, and its input where nothing waits elsewhere
    kept = shape.layers * float(tokens * wish.rank * width + (0 if wish.offload else stream))
    rows = min(tokens, chunkedloss.fused_at_a_time(chunkedloss.tokens_at_a_time(shape.vocabulary), tokens))
    chunk = rows * (shape.vocabulary + shape.hidden) * width
    # weights of 4 bits are made once for all slices of a layer, where there are several
    made = 2.0 * block.linear_weights if bits and several else 0.0
    # the gated part on the way ahead, and back: what it takes beside what it is given and what it writes
    wide = columns.at_a_time(block.mlp, several=several) if bits else block.mlp
    weights = 2.0 * wide * shape.hidden * width if bits and not several else 0.0
    gated, gated_back = (count * piece + (1.0 + count) * few * wide * width + weights for count in (1.0, 2.0))
    # ahead: what a layer takes and gives, and all that waits elsewhere later on
    bundle = part + seen + heads if wish.offload else part
    ahead = made + (2.0 if wish.offload else 1.0) * stream + bundle + gated
    # back: the gradient, in several slices the one that is made as well; and what was fetched, or made again
    through = made + stream * (2.0 if some < tokens else 1.0)
    mine = part + seen + heads + (0.0 if wish.offload else part)
    # what attention takes, gives back, and works with; beside it, of several slices, the next one's sum is fetched
    at_once = attend.BACK if some == tokens and not wish.packed else some
    back = attend.few_rows(some // wish.length, wish.length, at_once)[0].stop * wish.length * block.queries
    attention = 2.0 * part + 2.0 * seen + 2.0 * heads + _ATTENTION * back + part * (wish.offload and some < tokens)
    most = through + max(mine + piece + gated_back, attention)
    # the last layer is not put away, it is wanted at once
    last = 2.0 * part + seen + heads if wish.offload else 0.0
    moments = (
        Moment(kept + ahead, 0.0, early, waiting),
        Moment(3.0 * stream + last + kept, 0.0 if wish.scores else chunk, early, waiting),
        # the last layer's input is there as a whole
        Moment(kept + stream * (wish.offload and some < tokens) + most, 0.0, early, waiting),
        Moment(kept / shape.layers + most, 0.0, learned, waiting),
        Moment(0.0, 0.0, learned, states),
    )
    numbers = 2.0 * shape.hidden + 2.0 * block.queries + 2.0 * block.values
    away = shape.layers * tokens * numbers * width + parked if wish.offload else 0.0
    return max(moments, key=lambda moment: moment.total), away
