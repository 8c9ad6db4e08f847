"""One decoder layer as one autograd function: it keeps little, and makes again what its gradient needs.

It keeps its input and, where that waits in host memory, what attention gave and the sum behind it, too. Rows go through
in slices of about `ROWS` tokens, the gated part in slices of `TOKENS` where it is made whole, so that the workspace
stays the same for any batch. The layer's last product is not made again: nothing in the backward pass looks at it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from strix_train.lean import attend, columns
from strix_train.lean.attend import Choice, Seen
from strix_train.lean.columns import Columns
from strix_train.lean.gated import Gated
from strix_train.lean.linear import Gradients, Shared, cast
from strix_train.lean.parts import Parts
from strix_train.lean.stash import Stash, Ticket

# Tokens of a slice: fewer make products less dense, more take more memory.
ROWS, TOKENS = 8192, 4096


@dataclass(slots=True)
class Pass:
    """What all layers of one forward pass share. `cos`, `sin`: (positions, width), or (rows, positions, width).

    `seen`: one for each slice of rows. `steps`: the module of the small steps. `rich`: whether what attention gave is
    kept as well.
    """

    cos: Any
    sin: Any
    seen: list[Seen]
    step: int
    steps: Any
    stash: Stash
    kernels: Choice
    rich: bool = False

    def slices(self, rows: int) -> Iterator[tuple[slice, Seen, Any, Any]]:
        """Yield slices of rows with what their tokens see, and their turns as (positions, width)."""
        for number, start in enumerate(range(0, rows, self.step)):
            some = slice(start, min(rows, start + self.step))
            cos, sin = (
                each.reshape(-1, each.shape[-1]) if len(each) == 1 else each[some].reshape(-1, each.shape[-1])
                for each in (self.cos, self.sin)
            )
            yield some, self.seen[number if len(self.seen) > 1 else 0], cos, sin


@dataclass(frozen=True, slots=True)
class Kept:
    """What one slice of rows left for its gradient: its input and what attention gave; the sum of both, needed first.

    `middle` is None where that is made again, as is what attention gave then.
    """

    rest: Ticket
    middle: Ticket | None


def rows_at_a_time(tokens: int) -> int:
    """Return how many rows of so many tokens one slice has."""
    return max(1, ROWS // tokens)


class Work:
    """The computation of one layer on one device, for one pass over it, forward or backward.

    `tokens` of all rows: where they are several slices, weights that are made of 4 bits are made once for all of them.
    """

    def __init__(self, parts: Parts, shared: Pass, dtype: Any, tokens: int) -> None:
        self.parts, self.shared, self.steps, self.dtype = parts, shared, shared.steps, dtype
        packed = columns.packed(parts) if self.steps.UNPACKS else None
        self.few = TOKENS if packed is None else ROWS
        dense: dict[Any, Any] | None = {} if tokens > self.few else None
        self.inputs = Shared((parts.queries, parts.keys, parts.values), self.steps, dtype, dense)
        self.output = Shared((parts.output,), self.steps, dtype, dense)
        self.gated: Gated | Columns
        if packed is None:
            self.gated = Gated(parts, self.steps, dtype, dense)
            cast((self.inputs, self.output, self.gated.gates, self.gated.down))
        else:
            self.gated = Columns(parts, packed, self.steps, dtype, dense)
            cast((self.inputs, self.output))

    def heads(self, x: Any, cos: Any, sin: Any) -> tuple[Any, list[Any], list[Any]]:
        """Return the normed input's low-rank part, queries, keys and values, and the former two before their norms.

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
        return low, [each.view(*x.shape[:2], -1, parts.width) for each in found], raw

    def after(self, x: Any, seen: Any) -> tuple[Any, Any]:
        """Return the sum of the input and what attention adds, and the low-rank part of the latter. All flat."""
        low = self.output.low(seen)
        out = self.output.ahead(seen, low, self.parts.output)
        return out.add_(x), low

    def ahead(self, x: Any, seen: Seen, turns: tuple[Any, Any], out: Any, *, stay: bool) -> Kept:
        """Write the layer's result for a slice x, (rows, tokens, width), into `out`; return what `back` is given.

        `stay`: it is wanted again at once.
        """
        parts, width = self.parts, x.shape[-1]
        _, (q, k, v), _ = self.heads(x, *turns)
        found, saved = attend.ahead(q, k, v, seen, parts.scale, self.shared.kernels)
        del q, k, v
        flat = x.reshape(-1, width)
        middle, _ = self.after(flat, found.reshape(len(flat), -1))
        written = out.view(-1, width)
        for start in range(0, len(flat), self.few):
            few = slice(start, start + self.few)
            self.gated.ahead(middle[few], written[few])
        stash = self.shared.stash
        if not self.shared.rich or saved is None:
            return Kept(stash.put([x], stay=stay), None)
        # last in, first out
        rest = stash.put([x, found, *saved], stay=stay)
        return Kept(rest, stash.put([middle], stay=stay, along=True))

    def back(self, kept: Kept, grad: Any, seen: Seen, turns: tuple[Any, Any], sums: Gradients, *, wanted: bool) -> Any:
        """Return the gradient of a slice, flat, of that of its result, (rows, tokens, width); None if not `wanted`.

        What is needed next is fetched while the GPU computes: not before the gated part is done, which takes memory.
        """
        parts, preferred, stash = self.parts, self.shared.kernels, self.shared.stash
        outer = grad.reshape(-1, grad.shape[-1])
        if kept.middle is not None:
            [middle] = stash.get(kept.middle)
            stash.before(kept.middle)
            self.all_gated_back(middle, outer, sums)
            x, found, *saved = stash.get(kept.rest)
            stash.before(kept.rest)
            low, (q, k, v), raw = self.heads(x, *turns)
            _, attention_back = attend.again(q, k, v, seen, parts.scale, preferred, (found, saved))
            found = found.reshape(len(outer), -1)
            low_output = self.output.low(found)
        else:
            [x] = stash.get(kept.rest)
            low, (q, k, v), raw = self.heads(x, *turns)
            found, attention_back = attend.again(q, k, v, seen, parts.scale, preferred)
            found = found.reshape(len(outer), -1)
            middle, low_output = self.after(x.reshape(outer.shape), found)
            self.all_gated_back(middle, outer, sums)
            stash.before(kept.rest)
        inner = self.output.back(found, low_output, [middle], sums)
        del found
        heads = list(attention_back(inner.view(q.shape)))
        del inner, attention_back, q, k, v
        for at in (0, 1):
            heads[at] = heads[at].contiguous()
            turned = heads[at].view(len(outer), -1, parts.width)
            self.steps.rotate(turned, *turns, back=True)
            if parts.head_norms is not None:
                rows = turned.view(-1, parts.width), raw[at].reshape(-1, parts.width)
                self.steps.norm_back(*rows, parts.head_norms[at], parts.eps)
        flats = [each.reshape(len(outer), -1) for each in heads]
        del heads, raw
        flat = x.reshape(outer.shape)
        # made again: beside what attention's gradient takes there is little room
        normed = self.steps.norm(flat, parts.first_norm, parts.eps)
        result = self.inputs.back(normed, low, flats, sums, wanted=wanted)
        return self.steps.norm_back(result, flat, parts.first_norm, parts.eps, middle) if wanted else None

    def all_gated_back(self, middle: Any, outer: Any, sums: Gradients) -> None:
        """Turn the sum behind attention into its gradient, in place, of the layer's result's."""
        for start in range(0, len(middle), self.few):
            few = slice(start, start + self.few)
            self.gated.back(middle[few], outer[few], sums)


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
            out = torch.empty_like(x)
            with torch.autocast(x.device.type, enabled=False):
                work = Work(parts, shared, x.dtype, x.shape[0] * x.shape[1])
                for some, seen, *turns in shared.slices(len(x)):
                    stay = last and some.stop == len(x)
                    ctx.kept.append(work.ahead(x[some], seen, (turns[0], turns[1]), out[some], stay=stay))
            return out

        @staticmethod
        def backward(ctx: Any, *outer: Any) -> Any:
            [grad] = outer
            shared, wanted, sums = ctx.shared, ctx.needs_input_grad[2], Gradients()
            with torch.autocast(grad.device.type, enabled=False), torch.no_grad():
                work = Work(ctx.parts, shared, grad.dtype, grad.shape[0] * grad.shape[1])
                slices = list(shared.slices(len(grad)))
                found = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device) if len(slices) > 1 else None
                for some, seen, *turns in reversed(slices):
                    turned = (turns[0], turns[1])
                    part = work.back(ctx.kept.pop(), grad[some], seen, turned, sums, wanted=wanted)
                    if not wanted:
                        continue
                    if found is None:
                        found = part.view(grad.shape)
                    else:
                        found[some] = part.view(grad[some].shape)
                    del part
            return None, None, found if wanted else None, None, *sums.take(ctx.learns)

    return Layer
