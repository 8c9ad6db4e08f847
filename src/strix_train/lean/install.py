"""Lets a model's decoder layers compute leanly while it learns; in any other use it stays what it was."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

from strix_train.lean import attend, keep, layer, parts, steps
from strix_train.lean.arena import Arena, Budget
from strix_train.lean.attend import Seen
from strix_train.lean.keep import Keep
from strix_train.lean.passing import Pass
from strix_train.lean.stash import Stash, host_budget


def install(model: Any, *, offload: bool) -> Lean | None:
    """Make a causal language model with a low-rank adapter lean. Returns None, and changes nothing, where it cannot.

    `offload`: let what layers keep wait in host memory, where that is another memory than the GPU's.
    """
    inner = model.get_base_model() if hasattr(model, "peft_config") else model
    text = getattr(inner, "model", None)
    found = [parts.of_layer(each) for each in getattr(text, "layers", ())]
    made = [each for each in found if each is not None]
    if not made or len(made) < len(found) or not any(each.learns() for each in made):
        return None
    return Lean(text, made, offload=offload)


class Lean:
    """A text model (embedding, layers, norm) whose layers are lean while it learns."""

    def __init__(self, text: Any, made: list[parts.Parts], *, offload: bool) -> None:
        self.text, self.made, first = text, made, made[0]
        weight = first.first_norm
        self.kernels = attend.choose(weight.device, weight.dtype, first.heads, first.groups, first.width)
        budget = Budget(host_budget() if offload else 0)
        self.steps, self.stash = steps.of(weight.device), Stash(budget.most > 0, Arena(budget))
        # bytes that leave the GPU while a layer is computed for one token
        self.hurry = math.inf
        if self.stash.on and weight.device.type == "cuda":
            self.hurry = keep.hurry(keep.measure(weight.device, weight.dtype), first)
        self.adapted = next(
            module for module in text.modules() if hasattr(module, "lora_A") and hasattr(module, "disable_adapters")
        )
        # what is known before the first layer of a pass that is lean, and what its layers then share
        self.seen: list[Seen] | None = None
        self.step = 1
        self.still = True
        self.shared: Pass | None = None
        self.plain = text.forward

        @functools.wraps(self.plain)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self.forward(*args, **kwargs)

        text.forward = forward
        for number, own in enumerate(made):
            own.owner.forward = self._layer(own.owner.forward, number)
        if type(text.norm).__name__.endswith("RMSNorm") and not text.norm.weight.requires_grad:
            self._norm(text.norm)

    @property
    def parks(self) -> bool:
        """Whether the optimizer's states can wait elsewhere: they are whole, and there is another memory."""
        return self.still and self.stash.on

    @property
    def told(self) -> str:
        """What a run says about it."""
        small = "kernels of Triton" if self.steps.__name__.endswith("kernels") else "no kernels of our own"
        away = ", what they keep waits in the system's memory" if self.stash.on else ""
        whole = self.kernels.whole
        which = "PyTorch's choice of attention" if whole == "any" else f"{whole} attention"
        return f"lean: {which}, {small}{away}"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the hidden states: leanly where the model learns from them, else as the model would."""
        import torch

        ids = args[0] if args else kwargs.get("input_ids")
        what = ids if ids is not None else kwargs.get("inputs_embeds")
        learning = self.text.training and torch.is_grad_enabled() and not self.adapted.disable_adapters
        if what is None or len(args) > 1 or not learning or kwargs.get("use_cache") or kwargs.get("past_key_values"):
            return self.plain(*args, **kwargs)
        rows, tokens = what.shape[:2]
        self.step = layer.rows_at_a_time(tokens)
        self.seen = seen(kwargs.get("attention_mask"), kwargs.get("position_ids"), rows, tokens, self.step)
        # four dimensions: a mask that is ready, so that none is made
        kwargs["attention_mask"] = torch.empty(1, 1, 1, 1, dtype=torch.bool, device=what.device)
        try:
            return self.plain(*args, **kwargs)
        finally:
            self.seen = self.shared = None

    def moving(self) -> None:
        """Know that weights come and go from now on, as with FSDP: none of those that were found is kept alive here."""
        self.still = False
        self.made = [parts.hollow(own) for own in self.made]

    def _layer(self, plain: Any, number: int) -> Any:
        """Return the forward of one layer."""
        last = number == len(self.made) - 1

        @functools.wraps(plain)
        def forward(hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
            if self.seen is None:
                return plain(hidden_states, *args, **kwargs)
            # FSDP puts gathered weights into the modules, for each pass anew
            own = self.made[number] if self.still else parts.renewed(self.made[number])
            if self.shared is None:
                cos, sin = kwargs["position_embeddings"]
                self.shared = self._pass(cos, sin, hidden_states, own)
            return layer.function().apply(own, self.shared, hidden_states, last, *own.learns())

        return forward

    def _pass(self, cos: Any, sin: Any, hidden: Any, own: parts.Parts) -> Pass:
        """Return what the layers of one pass share: what they keep is what finds room on the host."""
        self.stash.settle()  # the optimizer's states, which left after its step
        assert self.seen is not None
        rows, tokens, width = hidden.shape
        slices, kernels, kept = -(-rows // self.step), self.kernels, Keep.INPUT
        if slices > 1:
            # there, attention's gradient is not what takes the most memory
            kernels = replace(kernels, back=max(kernels.back, self.step * tokens))
        if self.stash.on:
            each = min(rows, self.step) * tokens
            wanted, room = keep.numbers(own, width), self.stash.arena.left
            kept = keep.choose(wanted, len(self.made), slices, each, hidden.element_size(), room, self.hurry)
        return Pass(cos, sin, self.seen, self.step, self.steps, self.stash, kernels, kept)

    def _norm(self, module: Any) -> None:
        """Let a norm keep its input only, in the input's own type."""
        plain = module.forward

        @functools.wraps(plain)
        def forward(hidden_states: Any) -> Any:
            if self.seen is None:
                return plain(hidden_states)
            return _normed().apply(hidden_states, module.weight, module.variance_epsilon, self.steps)

        module.forward = forward


def seen(mask: Any, positions: Any, rows: int, tokens: int, step: int) -> list[Seen]:
    """Return what tokens see, for each slice of `step` rows; one entry where all slices are the same.

    `mask`: None, (rows, tokens) with 0 where rows are filled up, or (rows, 1, tokens, tokens). `positions`: None, or
    (rows, tokens), where each text of packed rows begins with 0. Rows that are filled up on the right need no mask:
    nothing that counts stands behind what fills them.
    """
    import torch

    if mask is not None and mask.dim() == 4:
        return [Seen(mask=mask[at : at + step].expand(-1, 1, -1, -1)) for at in range(0, rows, step)]
    if mask is not None and tokens > 1 and not bool((mask[:, 1:] <= mask[:, :-1]).all()):
        real = mask.bool()  # what fills the rows stands before something that counts
        causal = torch.ones(tokens, tokens, dtype=torch.bool, device=mask.device).tril()
        # a token that fills a row sees itself, so that its numbers stay finite
        own = torch.eye(tokens, dtype=torch.bool, device=mask.device)
        whole = (causal & real[:, None, :] | own)[:, None]
        return [Seen(mask=whole[at : at + step]) for at in range(0, rows, step)]
    if positions is None or mask is not None:
        return [Seen()]
    begins = positions.expand(rows, -1) == 0
    begins[:, 0] = True
    places = begins.reshape(-1).nonzero()[:, 0].tolist()
    if len(places) == rows:
        return [Seen()]
    found = []
    for at in range(0, rows, step):
        first, end = at * tokens, min(rows, at + step) * tokens
        starts = [*(place - first for place in places if first <= place < end), end - first]
        longest = max(b - a for a, b in pairwise(starts))
        found.append(Seen(starts=torch.tensor(starts, dtype=torch.int32, device=positions.device), longest=longest))
    return found


@functools.cache
def _normed() -> Any:
    """Return the autograd function of a norm whose weight is frozen, made once torch is wanted."""
    import torch

    class Normed(torch.autograd.Function):  # type: ignore[misc]
        """(input, weight, eps, steps) -> normed."""

        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any, eps: float, small: Any) -> Any:
            ctx.save_for_backward(x, weight)
            ctx.eps, ctx.steps = eps, small
            return small.norm(x.reshape(-1, x.shape[-1]), weight, eps).view(x.shape)

        @staticmethod
        def backward(ctx: Any, *outer: Any) -> Any:
            x, weight = ctx.saved_tensors
            grad = outer[0].reshape(-1, x.shape[-1]).clone()
            return ctx.steps.norm_back(grad, x.reshape(-1, x.shape[-1]), weight, ctx.eps).view(x.shape), *[None] * 3

    return Normed
