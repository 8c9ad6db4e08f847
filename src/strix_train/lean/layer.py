"""One decoder layer as one autograd function: it keeps its input, and makes again what its gradient needs.

Rows go through in slices of about `ROWS` tokens, the gated part in slices of `TOKENS`, so that the workspace stays the
same for any batch. The layer's last product is not made again: nothing in the backward pass looks at it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from strix_train.lean import attend
from strix_train.lean.attend import Kernel, Seen
from strix_train.lean.linear import Gradients, Shared
from strix_train.lean.parts import Parts
from strix_train.lean.stash import Stash

# Tokens of a slice: fewer make products less dense, more take more memory.
ROWS, TOKENS = 8192, 4096


@dataclass(slots=True)
class Pass:
    """What all layers of one forward pass share. `cos`, `sin`: (positions, width), or (rows, positions, width).

    `seen`: one for each slice of rows. `steps`: the module of the small steps.
    """

    cos: Any
    sin: Any
    seen: list[Seen]
    step: int
    steps: Any
    stash: Stash
    kernel: Kernel

    def slices(self, rows: int) -> Iterator[tuple[slice, Seen, Any, Any]]:
        """Yield slices of rows with what their tokens see, and their turns as (positions, width)."""
        for number, start in enumerate(range(0, rows, self.step)):
            some = slice(start, min(rows, start + self.step))
            cos, sin = (
                each.reshape(-1, each.shape[-1]) if len(each) == 1 else each[some].reshape(-1, each.shape[-1])
                for each in (self.cos, self.sin)
            )
            yield some, self.seen[number if len(self.seen) > 1 else 0], cos, sin


def rows_at_a_time(tokens: int) -> int:
    """Return how many rows of so many tokens one slice has."""
    return max(1, ROWS // tokens)


class Work:
    """The computation of one layer on one device, for one pass over it."""

    def __init__(self, parts: Parts, shared: Pass, dtype: Any) -> None:
        self.parts, self.shared, self.steps, self.dtype = parts, shared, shared.steps, dtype
        self.inputs = Shared((parts.queries, parts.keys, parts.values), dtype)
        self.output = Shared((parts.output,), dtype)
        self.gates = Shared((parts.gate, parts.up), dtype)
        self.down = Shared((parts.down,), dtype)

    def heads(self, x: Any, cos: Any, sin: Any) -> tuple[Any, Any, list[Any], list[Any]]:
        """Return the normed input, its low-rank part, queries, keys and values, and the former two before their norms.

        x: (rows, tokens, width); queries and the like (rows, tokens, heads, width of a head).
        """
        parts, flat = self.parts, x.reshape(-1, x.shape[-1])
        normed = self.steps.norm(flat, parts.first_norm, parts.eps)
        low = self.inputs.low(normed)
        found = [self.inputs.ahead(normed, low, each) for each in self.inputs.projections]
        raw: list[Any] = []
        for at in (0, 1):
            head = found[at].view(len(flat), -1, parts.width)
            if parts.head_norms is not None:
                raw.append(head)
                head = self.steps.norm(head.view(-1, parts.width), parts.head_norms[at], parts.eps).view(head.shape)
            self.steps.rotate(head, cos, sin)
            found[at] = head
        return normed, low, [each.view(*x.shape[:2], -1, parts.width) for each in found], raw

    def after(self, x: Any, seen: Any) -> tuple[Any, Any]:
        """Return the sum of the input and what attention adds, and the low-rank part of the latter. All flat."""
        low = self.output.low(seen)
        out = self.output.ahead(seen, low, self.parts.output)
        return out.add_(x), low

    def ahead(self, x: Any, out: Any) -> None:
        """Write the layer's result for x, (rows, tokens, width), into `out`."""
        parts, shared = self.parts, self.shared
        for some, seen, cos, sin in shared.slices(len(x)):
            mine = x[some]
            _, _, (q, k, v), _ = self.heads(mine, cos, sin)
            found, _ = attend.ahead(q, k, v, seen, parts.scale, shared.kernel)
            del q, k, v
            flat = mine.reshape(-1, x.shape[-1])
            middle, _ = self.after(flat, found.reshape(len(flat), -1))
            del found
            written = out[some].view(-1, x.shape[-1])
            for start in range(0, len(flat), TOKENS):
                few = slice(start, start + TOKENS)
                gated = self.gated(middle[few])[3]
                low = self.down.low(gated)
                written[few] = self.down.ahead(gated, low, parts.down).add_(middle[few])
                del gated

    def gated(self, middle: Any, *, apart: bool = False) -> tuple[Any, Any, Any, Any]:
        """Return the normed input of the gated part, its low-rank part, its second product, and the first.

        Not `apart`: the gated product stands in the place of the first.
        """
        parts = self.parts
        normed = self.steps.norm(middle, parts.second_norm, parts.eps)
        low = self.gates.low(normed)
        first, second = (self.gates.ahead(normed, low, each) for each in self.gates.projections)
        return normed, low, second, first if apart else self.steps.gate(first, second)

    def back(self, x: Any, grad: Any, sums: Gradients, *, wanted: bool) -> Any:
        """Return the gradient of x, written in its place, of the result's; None where it is not wanted."""
        parts, shared = self.parts, self.shared
        for some, seen, cos, sin in shared.slices(len(x)):
            mine, outer = x[some], grad[some].reshape(-1, x.shape[-1])
            flat = mine.view(-1, x.shape[-1])
            normed, low, (q, k, v), raw = self.heads(mine, cos, sin)
            found, attention_back = attend.again(q, k, v, seen, parts.scale, shared.kernel)
            found = found.reshape(len(flat), -1)
            middle, low_output = self.after(flat, found)
            # of the sum behind attention: first what comes by the gated part, in the place of the sum
            for start in range(0, len(flat), TOKENS):
                few = slice(start, start + TOKENS)
                self.gated_back(middle[few], outer[few], sums)
            inner = self.output.back(found, low_output, [middle], sums)
            del found
            heads = list(attention_back(inner.view(q.shape)))
            del inner, attention_back, q, k, v
            for at in (0, 1):
                heads[at] = heads[at].contiguous()
                turned = heads[at].view(len(flat), -1, parts.width)
                self.steps.rotate(turned, cos, sin, back=True)
                if parts.head_norms is not None:
                    few_norm = parts.head_norms[at]
                    self.steps.norm_back(
                        turned.view(-1, parts.width), raw[at].reshape(-1, parts.width), few_norm, parts.eps
                    )
            flats = [each.reshape(len(flat), -1) for each in heads]
            del heads
            found = self.inputs.back(normed, low, flats, sums, wanted=wanted)
            del normed, flats
            if wanted:
                self.steps.norm_back(found, flat, parts.first_norm, parts.eps, middle)
                flat.copy_(found)
        return x if wanted else None

    def gated_back(self, middle: Any, outer: Any, sums: Gradients) -> None:
        """Turn the input of the gated part (tokens, width) into its gradient, in place, of the layer's result's."""
        parts = self.parts
        normed, low, second, first = self.gated(middle, apart=True)
        # the gradient of the gated product needs no gated product, that of the adapter behind it does
        grad = self.down_gradient(outer)
        self.steps.gate_back(first, second, grad)
        self.down.back(grad, self.down.low(grad), [outer], sums, wanted=False)
        del grad
        inner = self.gates.back(normed, low, [first, second], sums)
        del first, second, normed
        self.steps.norm_back(inner, middle, parts.second_norm, parts.eps, outer)
        middle.copy_(inner)

    def down_gradient(self, outer: Any) -> Any:
        """Return the gradient of what the last projection takes."""
        import torch

        each, place = self.parts.down, self.down.places.get(id(self.parts.down))
        weight = each.dense(self.dtype)
        if place is None:
            return outer @ weight
        part = torch.empty(len(outer), self.down.rank, dtype=self.dtype, device=outer.device)
        torch.addmm(part, outer, self.down.ups[id(each)], beta=0, alpha=each.scale, out=part)
        return (part @ self.down.downs).addmm_(outer, weight)


@functools.cache
def function() -> Any:
    """Return the autograd function, made once torch is wanted."""
    import torch

    class Layer(torch.autograd.Function):  # type: ignore[misc]
        """A decoder layer: (parts, pass, input (rows, tokens, width), whether it is the last, *adapters) -> result."""

        @staticmethod
        def forward(ctx: Any, parts: Parts, shared: Pass, x: Any, last: bool, *learns: Any) -> Any:
            ctx.parts, ctx.shared, ctx.learns = parts, shared, learns
            with torch.autocast(x.device.type, enabled=False):
                out = torch.empty_like(x, memory_format=torch.contiguous_format)
                Work(parts, shared, x.dtype).ahead(x, out)
            ctx.ticket = shared.stash.put(x.detach(), stay=last)
            ctx.away = ctx.ticket.here is None
            return out

        @staticmethod
        def backward(ctx: Any, *outer: Any) -> Any:
            [grad] = outer
            x = ctx.shared.stash.get(ctx.ticket)
            if not ctx.away:
                x = x.clone()  # the gradient is written in its place, and this one is not ours alone
            sums = Gradients()
            with torch.autocast(x.device.type, enabled=False), torch.no_grad():
                work = Work(ctx.parts, ctx.shared, x.dtype)
                found = work.back(x.contiguous(), grad.contiguous(), sums, wanted=ctx.needs_input_grad[2])
            return None, None, found, None, *(sums.of(each) for each in ctx.learns)

    return Layer
