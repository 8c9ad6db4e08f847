"""One decoder layer as one autograd function: it keeps little, and makes again what its gradient needs.

It keeps its input and, where that waits in host memory, more of what it computed (`Keep`). Rows go through in slices of
about `ROWS` tokens, the gated part in slices of `TOKENS` where it is made whole, so that the workspace
stays the same for any batch. The layer's last product is not made again: nothing in the backward pass looks at it.
"""

from __future__ import annotations

import functools
from typing import Any

from strix_train.lean import attend, columns, joined
from strix_train.lean.columns import Columns
from strix_train.lean.gated import Gated
from strix_train.lean.joined import Joined
from strix_train.lean.keep import Keep
from strix_train.lean.linear import Gradients, Shared, cast
from strix_train.lean.parts import Parts
from strix_train.lean.passing import Heads, Kept, Pass, Slice

# Tokens of a slice: fewer make products less dense, more take more memory.
ROWS, TOKENS = 16384, 4096


def rows_at_a_time(tokens: int) -> int:
    """Return how many rows of so many tokens one slice has."""
    return max(1, ROWS // tokens)


class Work:
    """The computation of one layer on one device, for one pass over it, forward or backward.

    `tokens` of all rows: where they are several slices, weights that are made of 4 bits are made once for all of them.
    """

    def __init__(self, parts: Parts, shared: Pass, dtype: Any, tokens: int, *, back: bool = False) -> None:
        self.parts, self.shared, self.steps, self.dtype, self.tokens = parts, shared, shared.steps, dtype, tokens
        packed = columns.packed(parts) if self.steps.UNPACKS else None
        self.few = TOKENS if packed is None else ROWS
        dense: dict[Any, Any] | None = {} if tokens > self.few else None
        self.inputs = Shared((parts.queries, parts.keys, parts.values), self.steps, dtype, dense)
        self.output = Shared((parts.output,), self.steps, dtype, dense)
        inputs = joined.packed(parts) if self.steps.UNPACKS and back else None
        self.joined = None if inputs is None else Joined(parts, inputs, self.steps, dtype, dense)
        self.gated: Gated | Columns
        if packed is None:
            self.gated = Gated(parts, self.steps, dtype, dense)
            cast((self.inputs, self.output, self.gated.gates, self.gated.down))
        else:
            self.gated = Columns(parts, packed, self.steps, dtype, dense)
            cast((self.inputs, self.output))

    def heads(self, x: Any, turns: tuple[Any, Any]) -> Heads:
        """Return queries, keys and values of an input, (rows, tokens, width)."""
        flat = x.reshape(-1, x.shape[-1])
        normed = self.steps.norm(flat, self.parts.first_norm, self.parts.eps)
        low = self.inputs.low(normed)
        if self.joined is not None:
            self.joined.share()
        found = [self.inputs.ahead(normed, low, each) for each in self.inputs.projections]
        return self.turned(found, x.shape[:2], turns, low)

    def turned(self, found: list[Any], shape: Any, turns: tuple[Any, Any], low: Any = None) -> Heads:
        """Return heads of what projections gave, flat: normed, where their family does that, and turned."""
        parts = self.parts
        made = [each.view(len(each), -1, parts.width) for each in found]
        raw = made
        if parts.head_norms is not None:
            pairs = zip(made, parts.head_norms, strict=False)  # values have no norm
            some = [self.steps.norm(each.view(-1, parts.width), by, parts.eps).view(each.shape) for each, by in pairs]
            made = [*some, made[2]]
        for each in made[:2]:
            self.steps.rotate(each, *turns)
        return Heads([each.view(*shape, -1, parts.width) for each in made], raw, low)

    def again(self, kept: list[Any], shape: Any, turns: tuple[Any, Any]) -> Heads:
        """Return heads of those that were kept: as they were before their norms where there are any, else turned."""
        if self.parts.head_norms is not None:
            return self.turned(kept, shape, turns)
        made = [each.view(len(each), -1, self.parts.width) for each in kept]
        return Heads([each.view(*shape, -1, self.parts.width) for each in made], made)

    def after(self, x: Any, seen: Any) -> tuple[Any, Any]:
        """Return the sum of the input and what attention adds, and the low-rank part of the latter. All flat."""
        low = self.output.low(seen)
        out = self.output.ahead(seen, low, self.parts.output)
        return out.add_(x), low

    def ahead(self, x: Any, some: Slice, out: Any, *, stay: bool) -> tuple[Kept, Any]:
        """Return what `back` is given, and the layer's result for a slice x, (rows, tokens, width).

        `out`: where it is written, if anywhere. `stay`: what is kept is wanted again at once.
        """
        import torch

        flat, shared = x.reshape(-1, x.shape[-1]), self.shared
        heads = self.heads(x, some.turns)
        also = [each.view(len(flat), -1) for each in heads.raw] if shared.keep is Keep.HEADS else []
        q, k, v = heads.made
        del heads
        found, saved = attend.ahead(q, k, v, some.seen, self.parts.scale, shared.kernels)
        del q, k, v
        middle, _ = self.after(flat, found.reshape(len(flat), -1))
        stash, rich = shared.stash, shared.keep is not Keep.INPUT and saved is not None
        # what goes away does so while the gated part is computed
        groups = [[x], [found, *saved, *also], [middle]] if rich else [[x]]
        tickets = stash.put(*groups, stay=stay)
        kept = Kept(tickets[0], heads=rich and bool(also))
        if rich:
            kept.seen, kept.middle = tickets[1:]
        del found, saved, also, groups, tickets
        out = torch.empty_like(x) if out is None else out
        written = out.view(-1, x.shape[-1])
        for start in range(0, len(flat), self.few):
            few = slice(start, start + self.few)
            kept.lows.append(self.gated.ahead(middle[few], written[few]))
        return kept, out

    def back(self, kept: Kept, grad: Any, some: Slice, sums: Gradients, out: Any, *, wanted: bool) -> Any:
        """Return the gradient of a slice, flat, of that of its result, (rows, tokens, width); None if not `wanted`.

        `out`: where it is written, if anywhere. What is needed next is fetched while the GPU computes, but before the
        gated part is done, which takes memory, only what must be.
        """
        scale, kernels, stash, shape = self.parts.scale, self.shared.kernels, self.shared.stash, grad.shape[:2]
        outer, x = grad.reshape(-1, grad.shape[-1]), None
        before = stash.previous(kept.x)
        if kept.seen is None or kept.middle is None:
            [x] = stash.get(kept.x)
            heads = self.heads(x, some.turns)
            q, k, v = heads.made
            found, attention_back = attend.again(q, k, v, some.seen, scale, kernels)
            found = found.reshape(len(outer), -1)
            middle, low = self.after(x.reshape(outer.shape), found)
            self.all_gated_back(middle, kept.lows, outer, sums)
        else:
            [middle] = stash.get(kept.middle)
            stash.fetch(kept.seen, None if kept.heads else kept.x)
            self.all_gated_back(middle, kept.lows, outer, sums)
            found, *saved = stash.get(kept.seen)
            # one slice alone takes the most here, and waits with what is next
            stash.fetch(kept.x, None if len(outer) == self.tokens else before)
            if kept.heads:
                saved, also = saved[:-3], saved[-3:]
                heads = self.again(also, shape, some.turns)
                del also
            else:
                [x] = stash.get(kept.x)
                heads = self.heads(x, some.turns)
            q, k, v = heads.made
            _, attention_back = attend.again(q, k, v, some.seen, scale, kernels, (found, saved))
            del saved
            found = found.reshape(len(outer), -1)
            low = self.output.low(found)
        inner = self.output.back(found, low, [middle], sums)
        del found
        grads = list(attention_back(inner.view(*shape, -1, self.parts.width)))
        heads.made = []
        if self.parts.head_norms is None:
            heads.raw = []  # nobody needs them but norms
        del inner, attention_back, q, k, v
        stash.fetch(before)
        if x is None:
            [x] = stash.get(kept.x)
        x = x.reshape(outer.shape)
        normed, result = self.heads_back(x, heads, grads, some.turns, sums, wanted=wanted)
        if result is None:
            return None
        parts = self.parts
        # in the place of what nobody needs any more
        out = normed if out is None else out
        return self.steps.norm_back(result, x, parts.first_norm, parts.eps, middle, out=out)

    def heads_back(
        self, x: Any, heads: Heads, grads: list[Any], turns: tuple[Any, Any], sums: Gradients, *, wanted: bool
    ) -> tuple[Any, Any]:
        """Return the normed input, and its gradient of those of its heads; None if not `wanted`."""
        whole, places = (None, [None] * 3) if self.joined is None else self.joined.room(len(x))
        for at, place in enumerate(places):
            turned = grads[at].contiguous().view(len(x), -1, self.parts.width)
            grads[at] = turned.view(len(x), -1)
            to = None if place is None else place.unflatten(1, turned.shape[1:])
            if at < 2:
                self.turned_back(turned, at, heads.raw[at] if heads.raw else None, turns, to)
            elif to is not None:
                to.copy_(turned)
            del turned
            if to is not None:
                grads[at] = None
        # made only now, or again: beside what attention's gradient takes there is little room
        normed = self.steps.norm(x, self.parts.first_norm, self.parts.eps)
        if self.joined is not None:
            heads.raw = []
            return normed, self.joined.back(normed, whole, sums, wanted=wanted)
        low = self.inputs.low(normed) if heads.low is None else heads.low
        return normed, self.inputs.back(normed, low, grads, sums, wanted=wanted)

    def turned_back(self, grad: Any, at: int, raw: Any, turns: tuple[Any, Any], to: Any) -> None:
        """Turn the gradient of queries or keys, (tokens, heads, width), into that before they were normed and turned.

        In its own place, or in that of `to`.
        """
        norms, width = self.parts.head_norms, self.parts.width
        if norms is None:
            self.steps.rotate(grad, *turns, back=True, out=to)
            return
        self.steps.rotate(grad, *turns, back=True)
        self.steps.norm_back(grad.view(-1, width), raw.reshape(-1, width), norms[at], self.parts.eps)
        if to is not None:
            to.copy_(grad)

    def all_gated_back(self, middle: Any, lows: list[Any], outer: Any, sums: Gradients) -> None:
        """Turn the sum behind attention into its gradient, in place, of the layer's result's."""
        for number, start in enumerate(range(0, len(middle), self.few)):
            few = slice(start, start + self.few)
            self.gated.back(middle[few], lows[number], outer[few], sums)


@functools.cache
def function() -> Any:
    """Return the autograd function, made once torch is wanted."""
    import torch

    class Layer(torch.autograd.Function):  # type: ignore[misc]
        """A decoder layer: (parts, pass, input (rows, tokens, width), whether it is the last, *adapters) -> result."""

        @staticmethod
        def forward(ctx: Any, parts: Parts, shared: Pass, x: Any, last: bool, *learns: Any) -> Any:
            ctx.parts, ctx.shared, ctx.learns, ctx.kept = parts, shared, learns, []
            x = x.detach().contiguous()
            slices = list(shared.slices(len(x)))
            out = torch.empty_like(x) if len(slices) > 1 else None
            with torch.autocast(x.device.type, enabled=False):
                work = Work(parts, shared, x.dtype, x.shape[0] * x.shape[1])
                for some in slices:
                    stay = last and some is slices[-1]
                    to = None if out is None else out[some.rows]
                    kept, found = work.ahead(x[some.rows], some, to, stay=stay)
                    ctx.kept.append(kept)
                    out = found if out is None else out
            return out

        @staticmethod
        def backward(ctx: Any, *outer: Any) -> Any:
            [grad] = outer
            shared, wanted, sums = ctx.shared, ctx.needs_input_grad[2], Gradients()
            with torch.autocast(grad.device.type, enabled=False), torch.no_grad():
                work = Work(ctx.parts, shared, grad.dtype, grad.shape[0] * grad.shape[1], back=True)
                slices = list(shared.slices(len(grad)))
                several = wanted and len(slices) > 1
                found = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device) if several else None
                for some in reversed(slices):
                    out = None if found is None else found[some.rows].view(-1, grad.shape[-1])
                    part = work.back(ctx.kept.pop(), grad[some.rows], some, sums, out, wanted=wanted)
                    if found is None and wanted:
                        found = part.view(grad.shape)
                    del part, out
            return None, None, found if wanted else None, None, *sums.take(ctx.learns)

    return Layer
