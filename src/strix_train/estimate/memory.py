"""Peak memory of a step by part, in bytes, as PyTorch counts what it has allocated.

The bytes that a token leaves behind were derived from what autograd keeps of the layers of transformers 5.17 with peft
0.21, and compared with the live tensors of real shapes that hold no data; Unsloth's from its kernels, and from runs on
an H200. docs/estimate.md has both comparisons.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strix_train.estimate import lean
from strix_train.estimate.shapes import Block, Shape

Backend = Literal["unsloth", "hf"]
# Bytes of 4-bit weights: half a byte, a scale of 8 bits for 64 of them, and one of 32 bits for 256 scales.
_FOUR_BITS = 0.5 + 1 / 64 + 4 / (64 * 256)
_EIGHT_BITS = 1.0
# The chunk of backends.chunkedloss: on a GPU logits that become their own gradient, elsewhere, and where a model caps
# its logits, 16-bit logits, the same in 32 bits, and their gradient.
_CHUNK = 2**27
_CAPPED = ("gemma4", "gemma4_text")
# On a GPU, Unsloth cuts the rows of a loss into four at least, and holds so many bytes of each logit.
_UNSLOTH_CHUNKS, _UNSLOTH_LOGIT, _UNSLOTH_MOST = 4, 6.3, 2**31
# All logits at once, as TRL's own losses of some methods want them: 16 bits, 32 bits, and their gradient.
_PLAIN_LOGIT = 12
MIB, GIB = 2**20, 2**30


@dataclass(frozen=True, slots=True)
class Wish:
    """What would be trained, and how. `length` in tokens. `bits`: of the number format: 16 or 32.

    `rows`: of a forward pass, the halves of pairs counted apart. `master`: bytes of a weight that learns whole.
    `eager`: attention that holds its scores. `offload`: what layers leave behind moves to the system's memory. `lean`:
    layers are lean (strix_train.lean). `parks`: their optimizer's states move there, too, between its steps.
    `chunked`: the loss never holds all logits. `scores`: the loss has no logits (reward models). `copies`: models
    beside the one that learns. `generates`: tokens that are generated for each row before the step. `packed`: rows have
    several texts.
    """

    shape: Shape
    adapter: str = "lora"
    rank: int = 16
    backend: Backend = "hf"
    rows: int = 2
    accumulation: int = 4
    length: int = 2048
    bits: int = 16
    master: int = 4
    recompute: bool = True
    eager: bool = False
    offload: bool = False
    gpu: bool = True
    chunked: bool = True
    scores: bool = False
    copies: int = 0
    generates: int = 0
    targets: frozenset[str] | None = None
    lean: bool = False
    parks: bool = True
    packed: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of a forward pass."""
        return self.rows * self.length

    @property
    def width(self) -> int:
        """Bytes of a number in the forward pass."""
        return 4 if self.bits == 32 else 2

    @property
    def learning(self) -> int:
        """Bytes of a weight that learns, of its gradient, and of each of its two moments."""
        return self.master if self.adapter == "full" else 4

    @property
    def trainable(self) -> int:
        """Weights that learn."""
        if self.adapter == "full":
            return self.shape.weights - self.shape.pictures
        extra = sum(b.count * sum(linear.outputs for linear in b.linears) for b in self.shape.blocks)
        return self.shape.adapter(self.rank, self.targets) + (extra if self.adapter == "dora" else 0)


@dataclass(frozen=True, slots=True)
class Parts:
    """Bytes on the device at the peak. `activations`: what layers keep for the backward pass, and one layer's work.

    `offloaded`: bytes in the system's memory, which is the GPU's as well where the two are one. `workspace`: copies of
    weights in another format, and libraries' buffers.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    workspace: int
    offloaded: int = 0

    @property
    def total(self) -> int:
        """The peak."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.workspace


def parts(wish: Wish, *, ranks: int = 1) -> Parts:
    """Return the parts of a step's peak memory. `ranks`: among how many the gradients are shared."""
    shape, tokens = wish.shape, wish.tokens
    learning = wish.learning
    trainable = wish.trainable
    if wish.lean and wish.chunked:
        most, away = lean.peak(wish)
        return Parts(
            weights=_weights(wish),
            gradients=int(most.gradients / ranks),
            optimizer=int(most.optimizer),
            activations=int(most.activations),
            logits=int(most.logits),
            workspace=_workspace(wish),
            offloaded=int(away),
        )
    gradients = trainable * learning / ranks
    kept, work, one, offloaded = _layers(wish)
    # with several passes to a step, the gradients of the ones before are there from the beginning
    early = gradients if wish.accumulation > 1 else 0
    logits = _logits(wish)
    # the loss comes first, then one layer after the other, and gradients arrive while what layers kept goes
    # the embedding's gradient is the last to come; an output layer that is the embedding gets two, which are added
    last = shape.lookup * learning if wish.adapter == "full" else 0
    twice = shape.head * learning if wish.adapter == "full" and shape.tied else 0
    moments = (
        (kept + (_narrowed(wish) if ranks == 1 else 0.0), logits, early),
        (kept + work, 0.0, early),
        (one + work, 0.0, max(early, gradients - last / ranks)),
        (0.0, 0.0, gradients + (2 if wish.accumulation > 1 else 1) * twice),
    )
    activations, shown, gradients = max(moments, key=sum)
    cache = 2 * tokens * wish.width * sum(b.count * b.values for b in shape.blocks if b.window >= 0)
    activations = max(activations, cache if wish.generates else 0)
    return Parts(
        weights=_weights(wish),
        gradients=int(gradients),
        optimizer=2 * trainable * learning,
        activations=int(activations),
        logits=int(shown),
        workspace=_workspace(wish),
        offloaded=int(offloaded),
    )


def kept(wish: Wish) -> float:
    """Return the bytes on the device that all layers keep of one pass, from its forward to its backward part."""
    return _layers(wish)[0]


def _narrowed(wish: Wish) -> float:
    """Return the bytes of the 16-bit copies of weights that autocast keeps until the forward pass is over.

    Where nothing is computed again they are among what layers keep; where weights are shared among ranks, they are
    gathered in 16 bits.
    """
    narrowed = wish.backend == "hf" and wish.adapter == "full" and wish.bits == 16 and wish.master == 4
    inner = sum(block.count * (block.linear_weights + block.experts) for block in wish.shape.blocks)
    return 2.0 * inner if narrowed and wish.recompute else 0.0


def _weights(wish: Wish) -> int:
    """Return the bytes of all weights, the adapter's own and those of copies included."""
    shape, wide = wish.shape, wish.width
    if wish.adapter == "full":
        return shape.weights * wish.master + wish.copies * shape.weights * wish.master
    adapter = 4 * wish.trainable
    if wish.adapter not in ("qlora", "lora8bit"):
        return shape.weights * wide + adapter
    linear = shape.linear_weights + shape.pictures
    return int(linear * stored(wish)) + (shape.weights - linear) * wide + adapter


def stored(wish: Wish) -> float:
    """Return the bytes of a weight of a linear layer, as it is stored when it is frozen, else as it computes."""
    if wish.adapter == "qlora":
        return _FOUR_BITS
    return _EIGHT_BITS if wish.adapter == "lora8bit" else wish.width


def _workspace(wish: Wish) -> int:
    """Return the bytes of what is computed from weights and lives for a while."""
    largest = max(linear.inputs * linear.outputs for b in wish.shape.blocks for linear in b.linears)
    found = 32 * MIB if wish.gpu else 0
    if wish.bits == 16 and wish.adapter != "full":
        found += 2 * wish.trainable // (wish.shape.layers if wish.recompute else 1)
    if wish.adapter in ("qlora", "lora8bit") and not wish.lean:
        # a weight that was made of fewer bits; lean layers count it with the rest
        found += largest * wish.width
    return found


def _logits(wish: Wish) -> float:
    """Return the bytes of the loss itself at its peak."""
    vocabulary = wish.shape.vocabulary
    if wish.scores:
        return 0.0
    if not wish.chunked:
        return wish.tokens * vocabulary * (_PLAIN_LOGIT if wish.width == 2 else 12)
    whole = wish.shape.head * (8 if wish.adapter == "full" else 0)  # the output layer's own gradient, in 32 bits
    if wish.backend == "unsloth":
        chunk = max(1.0, wish.tokens / (_UNSLOTH_CHUNKS if wish.gpu else 1)) * vocabulary * _UNSLOTH_LOGIT
        return min(chunk, _UNSLOTH_MOST) + whole
    chunk = min(_CHUNK, 4 * wish.tokens * vocabulary)
    times = 1.0 if wish.gpu and wish.bits == 16 and wish.shape.kind not in _CAPPED else 2.0
    return times * chunk + 2 * wish.tokens * wish.shape.hidden * wish.width + whole


def _layers(wish: Wish) -> tuple[float, float, float, float]:
    """Return the bytes that all layers keep until the backward pass, those that the work in one needs then, those that
    the last one keeps, and those offloaded."""
    stream = wish.tokens * wish.shape.hidden * (4 if wish.adapter == "full" and wish.master == 4 else wish.width)
    blocks = wish.shape.blocks
    saved = [_saved(wish, block) * wish.tokens for block in blocks]
    back = max(_back(wish, block) * wish.tokens for block in blocks)
    if wish.bits == 16 and wish.adapter == "full" and wish.master == 4:
        # autocast's copies of what is multiplied: of one layer where it is computed again, else of all
        saved = [each + 2 * (block.linear_weights + block.experts) for each, block in zip(saved, blocks, strict=True)]
    whole = sum(block.count * each for block, each in zip(blocks, saved, strict=True))
    if wish.backend == "unsloth" and wish.gpu:
        if not wish.recompute:
            return 0.8 * whole, back, 0.8 * max(saved), 0.0
        layer = max(_fused(wish, block) for block in blocks) * wish.tokens
        kept = float(stream * wish.shape.layers)
        return (2.0 * stream, layer, stream, kept) if wish.offload else (kept, layer, stream, 0.0)
    if wish.recompute:
        return float(stream * wish.shape.layers), max(saved) + back + stream, stream, 0.0
    return whole, back, max(saved), 0.0


def _saved(wish: Wish, block: Block) -> float:
    """Return the bytes a token that autograd keeps of one layer without recomputation."""
    hidden, wide = wish.shape.hidden, wish.width
    found = 4.0 * hidden * block.norms  # a norm keeps its input in 32 bits
    if wish.adapter == "full":
        found += (4 if wish.master == 4 else wide) * hidden * block.norms  # and, to learn its weight, what came of it
        found += wide * (hidden * 2 if wide == wish.master else sum(linear.inputs for linear in block.linears))
    elif wide == 2:
        # each linear layer's adapter keeps a copy of its own of what goes in
        found += 2.0 * sum(linear.inputs for linear in block.linears)
    else:
        found += 8.0 * hidden + 4.0 * block.mlp
    mixed = block.window < 0
    if mixed:
        # a gated delta rule: in plain PyTorch all its chunks in 32 bits, with kernels what goes in and comes out
        found += (48.0 if wish.backend == "hf" or not wish.gpu else 16.0) * block.queries
    else:
        found += 4.0 * wide * block.queries
        found += 4.0 * (block.queries + block.values) if block.head_norms else 0.0
        if wish.eager:
            # scores in 32 bits and again as they are multiplied; gpt-oss takes its softmax in 16
            score = 2.0 if wish.shape.kind == "gpt_oss" else 6.0
            found += block.heads * wish.length * (score if wide == 2 else 8.0)
    found += 3.0 * wide * block.mlp
    if block.experts:
        # rows are gathered for each expert that they go to, and what comes back is weighed
        found += block.chosen * hidden * wide * 3.0 + wide * block.mlp * 2.0
    return found


def _back(wish: Wish, block: Block) -> float:
    """Return the bytes a token of the gradients inside one layer."""
    return (8.5 if wish.width == 2 else 9.2) * max(block.mlp, block.queries)


def _fused(wish: Wish, block: Block) -> float:
    """Return the bytes a token of one layer in Unsloth's kernels, which overwrite what they no longer need."""
    wide = wish.width
    found = 6.0 * wide * max(block.mlp, block.queries) + 10.5 * wide * wish.shape.hidden
    if wish.eager and block.window >= 0:
        found += block.heads * wish.length * 3.0 * wide
    if block.experts:
        found += block.chosen * wish.shape.hidden * wide * 3.0
    return found
