"""What several ranks that train together hold and send, by how they share: memory of each by part, bytes by pass.

`ddp`: every rank holds all and gradients are averaged. `zero2`: gradients and optimizer are shared among the ranks.
`fsdp`, `zero3`: the weights as well; a layer's are gathered before it computes, forward and backward, and dropped.
`kept`: FSDP that keeps the gathered weights until the last pass of a step. `quiet`: and its own sums of gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from strix_train.estimate import memory
from strix_train.estimate.memory import Parts, Wish
from strix_train.estimate.shapes import Block

Sharing = Literal["none", "ddp", "fsdp", "kept", "quiet", "zero2", "zero3"]
FSDP: tuple[Sharing, ...] = ("fsdp", "kept", "quiet")
# What DDP sends at once (torch: bucket_cap_mb=25), and DeepSpeed (reduce_bucket_size and stage3_max_live_parameters).
DDP_BUCKET = 25 * 2**20
# Bytes of a gradient that FSDP sends, and sums up before it sends it: gradients are averaged in 32 bits.
_SUM = 4
_ZERO_BUCKET, _ZERO_LIVE = 500_000_000, 1_000_000_000


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that each rank sends, and takes in as well, of an optimizer step.

    `forward`, `backward`: in every pass; `once`: beside them in a step, at its last backward pass. `messages`: how many
    collectives these are, in the same order; `gathers`: bytes of them that are gathered and not averaged.
    """

    forward: float = 0.0
    backward: float = 0.0
    once: float = 0.0
    messages: tuple[int, int, int] = (0, 0, 0)
    gathers: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def step(self, accumulation: int) -> float:
        """Bytes of a whole step."""
        return accumulation * (self.forward + self.backward) + self.once


def shared(wish: Wish, sharing: Sharing) -> Wish:
    """Return what one rank really trains: Unsloth computes with whole weights, plain transformers with pieces."""
    if sharing in ("none", "ddp"):
        return wish
    # what lean layers keep moves away with FSDP as well; an optimizer's states that lie in pieces stay
    away = wish.offload and wish.lean and not sharing.startswith("zero")
    return replace(wish, backend="hf", offload=away, parks=False)


def parts(wish: Wish, sharing: Sharing, ranks: int) -> Parts:
    """Return the parts of one rank's peak memory. `wish`: what one rank trains, its own rows a pass."""
    if sharing == "none" or ranks < 2:
        return memory.parts(wish)
    wish = shared(wish, sharing)
    learns = wish.trainable * wish.learning
    if sharing == "ddp":
        found = memory.parts(wish)
        # buckets stay from step to step. In passes that send nothing gradients lie beside them, else in them alone
        beside = learns if wish.accumulation > 1 else learns - found.gradients
        return replace(found, workspace=found.workspace + int(beside))
    found = memory.parts(wish, ranks=ranks)
    if sharing == "quiet":
        # gradients are whole until they are averaged
        found = replace(found, gradients=max(memory.parts(wish).gradients * _SUM // wish.learning, learns))
    optimizer = ceil(found.optimizer / ranks)
    layer, outer = max(gathered(wish, block) for block in wish.shape.blocks), _outer(wish)
    if sharing in FSDP:
        # the layer that computes, the next one that is being gathered, and what is outside of layers all along;
        # the gradients of one layer before they are shared, and the copy that is sent
        own = 2 * _SUM * max(_learning(wish, block) for block in wish.shape.blocks)
        work = own + (2 * layer + outer if sharing == "fsdp" else _gathered(wish))
        return replace(
            found, weights=ceil(found.weights / ranks), optimizer=optimizer, workspace=int(found.workspace + work)
        )
    # DeepSpeed holds what learns in the format that computes, and shares a copy in 32 bits among the ranks
    width, master = wish.width, (4 if wish.bits == 16 else 0)
    weights = found.weights - wish.trainable * (wish.learning - width)
    optimizer = ceil(wish.trainable * (master + 8) / ranks)
    bucket: float = 2 * width * min(_ZERO_BUCKET, wish.trainable)
    if sharing == "zero3":
        bucket += max(2 * layer + outer, min(weights, width * _ZERO_LIVE))
        weights = ceil(weights / ranks)
    gradients = found.gradients * width // wish.learning
    return replace(
        found, weights=weights, gradients=gradients, optimizer=optimizer, workspace=int(found.workspace + bucket)
    )


def traffic(wish: Wish, sharing: Sharing, ranks: int) -> Traffic:
    """Return what each rank sends in a ring: 2(n-1)/n of what is averaged, (n-1)/n of what is gathered or scattered."""
    if sharing == "none" or ranks < 2:
        return Traffic()
    share = (ranks - 1) / ranks
    learns = wish.trainable
    if sharing == "ddp":
        whole = learns * wish.learning
        return Traffic(once=2 * share * whole, messages=(0, 0, 2 * ceil(whole / DDP_BUCKET)))
    if sharing == "zero2":
        # DeepSpeed averages in the format that computes, every pass, and gathers what has learned after the step
        buckets = ceil(learns / _ZERO_BUCKET)
        sent = share * learns * wish.width
        return Traffic(backward=sent, once=sent, messages=(0, buckets, buckets))
    gradients = float(learns * _SUM)
    if not wish.gpu:
        gradients *= 2  # gloo has no reduce-scatter: it averages all on every rank
    weights, count = _gathered(wish), wish.shape.layers + 1
    weights, gradients = share * weights, share * gradients
    if sharing == "kept":
        return Traffic(0.0, gradients, weights, (0, count, count), (0.0, 0.0, weights))
    if sharing == "quiet":
        return Traffic(0.0, 0.0, weights + gradients, (0, 0, 2 * count), (0.0, 0.0, weights))
    # what is outside of layers is gathered once a pass and kept for its backward pass
    again = weights - share * _outer(wish)
    return Traffic(weights, again + gradients, 0.0, (count, 2 * count - 1, 0), (weights, again, 0.0))


def gathered(wish: Wish, block: Block) -> float:
    """Return the bytes of one layer as it is gathered: frozen weights and adapters as they are stored.

    What learns whole is gathered as it computes; on a CPU, where nothing is narrowed on the way, as it is stored.
    """
    linear = block.linear_weights + (block.experts if wish.shape.experts_quantized else 0)
    rest = block.experts + block.linear_weights - linear + block.other
    if wish.adapter == "full":
        return (linear + rest) * _width(wish)
    return linear * memory.stored(wish) + rest * wish.width + _adapter(wish, block) * wish.learning


def _width(wish: Wish) -> int:
    """Return the bytes of a weight that learns whole, as it is gathered."""
    return min(wish.width, wish.learning) if wish.gpu else wish.learning


def _gathered(wish: Wish) -> float:
    """Return the bytes of all weights as they are gathered."""
    return sum(block.count * gathered(wish, block) for block in wish.shape.blocks) + _outer(wish)


def _outer(wish: Wish) -> float:
    """Return the bytes of what is outside of layers: embeddings, the output layer, the parts for pictures."""
    shape = wish.shape
    words = shape.lookup + (0 if shape.tied else shape.head)
    if wish.adapter == "full":
        return (words + shape.pictures) * _width(wish)
    return words * wish.width + shape.pictures * memory.stored(wish)


def _adapter(wish: Wish, block: Block) -> int:
    return 0 if wish.adapter == "full" else block.adapter(wish.rank, wish.targets)


def _learning(wish: Wish, block: Block) -> int:
    """Return how many weights of one layer learn."""
    whole = block.linear_weights + block.experts + block.other
    return whole if wish.adapter == "full" else _adapter(wish, block)
