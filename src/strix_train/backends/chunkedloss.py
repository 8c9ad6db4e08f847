"""Cross entropy without all logits at once: a chunk of tokens goes through the output layer, and is forgotten.

The logits of a batch take tokens x vocabulary x 12 bytes at their peak (16 bits, the same in 32, their gradient): 6 GiB
for 4096 tokens of a vocabulary of 128,256. Here the gradient of each chunk is made with the chunk, in the forward pass,
so that nothing of that size is saved and no product is computed twice. Tokens that are not learned take no part.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from strix_train.encode import IGNORED
from strix_train.lean import plain, steps

# Bytes of the 32-bit logits of one chunk.
_CHUNK = 2**27


def tokens_at_a_time(vocabulary: int) -> int:
    """Return how many tokens one chunk has: whole tiles of a matrix product, where there are several."""
    found = _CHUNK // (4 * max(1, vocabulary))
    return max(16, found // 128 * 128 or found)


def fused_at_a_time(step: int, tokens: int) -> int:
    """Return how many tokens a chunk has whose logits become their own gradient, of those it would have otherwise.

    Twice as many; four times where there are so many tokens that hidden states take more than the logits: the product
    of fewer rows with the output layer, whose result is small, leaves a part of a large GPU without work.
    """
    return max(2 * step, min(4 * step, tokens // 16))


def install(model: Any) -> bool:
    """Let a causal language model compute its loss in chunks where labels are given; its `logits` are then None.

    `model`: plain, or with an adapter of peft. Returns False, and changes nothing, where its loss or its output layer
    is another than the usual one. Without labels (generation, scoring) the model is as it was.
    """
    import torch
    from transformers.loss import loss_utils

    usual: Any = loss_utils.ForCausalLMLoss
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    head: Any = inner.get_output_embeddings() if hasattr(inner, "get_output_embeddings") else None
    if type(head) is not torch.nn.Linear or head.bias is not None or hasattr(head.weight, "ds_id"):
        return False  # DeepSpeed's third stage holds a weight only while its own layer computes
    if not hasattr(inner, "loss_function") or inner.loss_function is not usual:
        return False
    text = inner.config.get_text_config()
    plain_head, plain_forward = head.forward, inner.forward
    deferring = False

    def through_head(hidden: Any) -> Any:
        return hidden if deferring else plain_head(hidden)

    def loss_of(logits: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
        if not deferring:
            return usual(logits, labels, *args, **kwargs)
        # asked for anew: FSDP puts a gathered weight in the place of its piece for as long as the forward pass lasts
        items, shifted = kwargs.get("num_items_in_batch"), kwargs.get("shift_labels")
        return loss(logits, head.weight, labels, items, shifted, cap=softcap)

    @functools.wraps(plain_forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal deferring
        if kwargs.get("labels") is None or kwargs.get("return_dict") is False:
            return plain_forward(*args, **kwargs)
        deferring = True
        if softcap is not None:
            text.final_logit_softcapping = None  # it is for logits, and hidden states stand in their place
        try:
            found = plain_forward(*args, **kwargs)
        finally:
            deferring = False
            if softcap is not None:
                text.final_logit_softcapping = softcap
        found["logits"] = None
        return found

    softcap = getattr(text, "final_logit_softcapping", None)
    head.forward, inner.forward, inner.loss_function = through_head, forward, loss_of
    return True


def loss(
    hidden: Any, weight: Any, labels: Any, items: Any = None, shifted: Any = None, *, cap: float | None = None
) -> Any:
    """Return the loss of hidden states (rows, tokens, width) for labels (rows, tokens), as a scalar in 32 bits.

    The sum over the learned tokens, divided by `items` (of all accumulated batches) or else by their own number.
    `shifted`: labels that stand below the token that foretells them already. `cap`: the model's soft cap of logits.
    """
    import torch

    if shifted is None:
        shifted = torch.nn.functional.pad(labels, (0, 1), value=IGNORED)[..., 1:]
    if not torch.is_grad_enabled():
        weight = weight.detach()  # an autograd function is told of gradients that nobody is going to ask for
    targets = shifted.reshape(-1).to(hidden.device)
    learned = (targets != IGNORED).nonzero()[:, 0]
    if items is None:
        items = len(learned)
    elif torch.is_tensor(items):
        items = items.to(hidden.device)
    first = mantissa(float(items)) if torch.is_grad_enabled() else 1.0
    total = _summed().apply(hidden.reshape(-1, hidden.shape[-1]), weight, targets[learned], cap, learned, first)
    return total / items


def mantissa(items: float) -> float:
    """Return 1/items times a power of two, from 1 up to 2."""
    return 2 * math.frexp(1 / items)[0] if items > 0 else 1.0


@functools.cache
def _summed() -> Any:
    """Return the autograd function, made once torch is wanted."""
    import torch

    class Summed(torch.autograd.Function):  # type: ignore[misc]
        """Summed cross entropy of hidden states (tokens, width) through an output layer (vocabulary, width).

        `targets`: of the tokens whose numbers are in `learned`, of all where that is None. `first`: a factor of what
        the sum is multiplied with later, which gradients get before they are rounded to 16 bits. What is left for then
        is a power of two mostly, which rounds nothing; a number rounded twice can miss a factor altogether.
        """

        @staticmethod
        def forward(
            ctx: Any, hidden: Any, weight: Any, targets: Any, cap: float | None, learned: Any = None, first: float = 1.0
        ) -> Any:
            kind = hidden.device.type
            dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
            small = None if cap is not None or dtype == torch.float32 else steps.of(hidden.device)
            fused = small is not None and small is not plain
            step = tokens_at_a_time(len(weight))
            if fused:
                # logits in 16 bits that become their own gradient take a quarter of the memory
                step = fused_at_a_time(step, len(targets))
            with torch.autocast(kind, enabled=False):
                some = weight.to(dtype)
                for_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
                for_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
                total = torch.zeros((), dtype=torch.float32, device=hidden.device)
                for start in range(0, len(targets), step):
                    few = slice(start, start + step)
                    rows = few if learned is None else learned[few]
                    part, wanted = hidden[rows].to(dtype), targets[few]
                    scores = part @ some.T
                    if small is not None and fused:
                        total += small.cross_entropy(scores, wanted).sum()
                        grad = scores
                    else:
                        lost, grad = _plainly(
                            scores, wanted, cap, back=for_hidden is not None or for_weight is not None
                        )
                        total += lost
                    if for_hidden is not None:
                        for_hidden[rows] = _product(grad, some, first).to(for_hidden.dtype)
                    if for_weight is not None:
                        for_weight += _product(grad.T, part, first)
                    del scores, grad  # or they would live beside those of the next chunk
            ctx.first = first
            ctx.grads = [for_hidden, None if for_weight is None else for_weight.to(weight.dtype)]
            return total

        @staticmethod
        def backward(ctx: Any, *outer: Any) -> Any:
            [scale] = outer
            if ctx.grads is None:
                raise RuntimeError("the gradients of this loss were taken already")
            found = [None if grad is None else scaled(grad, scale / ctx.first) for grad in ctx.grads]
            ctx.grads = None
            return *found, None, None, None, None

    return Summed


def _product(one: Any, other: Any, factor: float) -> Any:
    """Return the product of two matrices and a factor, rounded once."""
    import torch

    out = torch.empty(one.shape[0], other.shape[1], dtype=one.dtype, device=one.device)
    return torch.addmm(out, one, other, beta=0, alpha=factor, out=out)


def scaled(grad: Any, scale: Any) -> Any:
    """Multiply a gradient (rows, width) in its own place, since it is large, by a scalar in 32 bits.

    A scalar in 16 bits would be off by up to 0.4 %, and all gradients with it, or be infinite. Some rows at a time take
    less memory in 32 bits than a chunk of the loss did.
    """
    if grad.element_size() >= scale.element_size():
        return grad.mul_(scale)
    for rows in grad.split(max(1, _CHUNK // 4 // (4 * grad.shape[-1]))):
        rows.copy_(rows.float().mul_(scale))
    return grad


def _plainly(scores: Any, targets: Any, cap: float | None, *, back: bool) -> tuple[Any, Any]:
    """Return the summed cross entropy of logits (tokens, vocabulary), and their gradient in their own type."""
    dtype, wanted = scores.dtype, targets[:, None]
    scores = scores.float()
    if cap is not None:
        scores.div_(cap).tanh_().mul_(cap)
    norm = scores.logsumexp(-1, keepdim=True)
    total = (norm - scores.gather(1, wanted)).sum()
    if not back:
        return total, None
    slope = 1 - (scores / cap) ** 2 if cap is not None else None
    grad = scores.sub_(norm).exp_()
    grad.scatter_add_(1, wanted, grad.new_full(wanted.shape, -1.0))
    if slope is not None:
        grad.mul_(slope)
    return total, grad.to(dtype)
