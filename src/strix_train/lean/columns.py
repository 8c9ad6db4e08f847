"""The gated part of a layer whose weights are stored in 4 bits: some of its columns at a time.

A weight has to be made before it is multiplied with, so it may as well be made where the adapter stands beside it: the
product of [x, x A'] with [W, B]' is the layer's result, adapter and all, in one go. And it may be made in parts: with
`WIDE` columns of the gated product at a time, the weights and what they give take that part of the memory. Where rows
come in several slices, the parts are kept until the last of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from strix_train.lean.fourbit import Packed
from strix_train.lean.linear import Gradients, once
from strix_train.lean.parts import Parts, Projection

# Columns at a time, at most: fewer make products less dense, more take more memory. Twice as many where rows come in
# several slices, since what lives beside them then takes more than that.
WIDE = 4096
# Columns are made up to a multiple of this, as are an adapter's, so that rows begin where products like it.
_EVEN, _EVEN_RANK = 128, 8


def at_a_time(inner: int, *, several: bool) -> int:
    """Return how many of the gated product's columns are made at a time, about as many each time.

    `several`: rows come in several slices.
    """
    count = -(-inner // (2 * WIDE if several else WIDE))
    return -(-inner // count // _EVEN) * _EVEN


class Adapters:
    """The adapters of linear layers with one input: what goes down, side by side and scaled; where each stands."""

    def __init__(self, projections: tuple[Projection, ...], width: int, dtype: Any, device: Any) -> None:
        import torch

        self.projections = projections
        self.places: list[slice] = []
        at = 0
        for each in projections:
            rank = 0 if each.down is None else each.down.shape[0]
            self.places.append(slice(at, at + rank))
            at += rank
        self.rank = -(-at // _EVEN_RANK) * _EVEN_RANK
        # what goes up need not be scaled where what goes down is
        self.downs = torch.zeros(self.rank, width, dtype=dtype, device=device)
        for each, place in self.present():
            torch.mul(each.down, each.scale, out=self.downs[place])

    def present(self) -> Iterator[tuple[Projection, slice]]:
        """Yield those that are there, each with its place among the ranks."""
        for each, place, _ in self.beside(self.projections):
            yield each, place

    def beside(self, parts: Iterable[Any]) -> Iterator[tuple[Projection, slice, Any]]:
        """Yield those that are there, each with its place among the ranks, and its layer's one of `parts`."""
        for each, place, part in zip(self.projections, self.places, parts, strict=True):
            if each.down is not None:
                yield each, place, part

    def add_downs(self, sums: Gradients, found: Any) -> None:
        """Add the gradients of what goes down, of the scaled ones' (ranks, inputs)."""
        for each, place in self.present():
            sums.add(each.down, found[place], each.scale)


class Columns:
    """The gated part of one layer, for one pass over it. `dense`: see `linear.Shared`."""

    def __init__(
        self,
        parts: Parts,
        packed: tuple[Packed, Packed, Packed],
        small: ModuleType,
        dtype: Any,
        dense: dict[Any, Any] | None,
    ) -> None:
        import torch

        self.parts, self.packed, self.small, self.dtype = parts, packed, small, dtype
        self.width, self.inner = packed[0].columns, packed[0].rows
        device = packed[0].data.device
        self.gates = Adapters((parts.gate, parts.up), self.width, dtype, device)
        self.down = Adapters((parts.down,), self.inner, dtype, device)
        self.kept, self.wide = dense, at_a_time(self.inner, several=dense is not None)
        # what goes up, below each other as the weights will be: beside each its own, and zeros
        self.ups = torch.zeros(2, self.inner, self.gates.rank, dtype=dtype, device=device)
        for each, place, part in self.gates.beside(self.ups):
            part[:, place].copy_(each.up)

    def ahead(self, middle: Any, out: Any) -> Any:
        """Write the layer's result into `out`, of the sum behind attention; both are (tokens, width).

        Returns what `back` is given: what goes down gave, (tokens, rank), or None.
        """
        import torch

        x = self._normed(middle)
        low: Any = None
        for number, some in enumerate(self.columns()):
            both = x @ self._gates(some).T
            gated = self.small.gate(*both.chunk(2, dim=1))
            torch.addmm(out if number else middle, gated, self._down(some, back=False).T, out=out)
            if self.down.rank:
                low = _more(low, gated, self.down.downs[:, some].T)
            del both, gated
        for each, place in self.down.present():
            out.addmm_(low[:, place], each.up.to(self.dtype).T)
        return low

    def back(self, middle: Any, low: Any, outer: Any, sums: Gradients) -> None:
        """Turn `middle`, in its own place, into its gradient, of that of the layer's result; `low`: see `ahead`."""
        import torch

        width, rank = self.width, self.gates.rank
        x, behind = self._normed(middle), self._behind(outer)
        # the gradients of adapters' weights: of what goes up, part after part as `_gates` has them
        ups = torch.empty(2 * self.inner, rank, dtype=self.dtype, device=middle.device)
        downs = torch.empty(self.down.rank, self.inner, dtype=self.dtype, device=middle.device)
        result: Any = None
        inner, outer_inner = x[:, width:], behind[:, width:].T
        for some in self.columns():
            grad = behind @ self._down(some, back=True)
            gates = self._gates(some)
            both = x @ gates.T
            # of both products their gradients, of the gradient the gated product
            self.small.gate_back(*both.chunk(2, dim=1), grad)
            if self.down.rank:
                torch.mm(outer_inner, grad, out=downs[:, some])
            del grad
            if rank:
                torch.mm(both.T, inner, out=ups[2 * some.start : 2 * some.stop])
            result = _more(result, both, gates)
            del both, gates
        self.down.add_downs(sums, downs)
        for each, place in self.down.present():
            sums.add(each.up, outer.T @ low[:, place])
        found = result[:, :width]
        if rank:
            self._add_ups(sums, ups)
            self.gates.add_downs(sums, result[:, width:].T @ x[:, :width])
            found.addmm_(result[:, width:], self.gates.downs)
        del x, behind, inner, outer_inner
        self.small.norm_back(found, middle, self.parts.second_norm, self.parts.eps, outer, out=middle)

    def _add_ups(self, sums: Gradients, ups: Any) -> None:
        """Add the gradients of what goes up in the first two layers, which stand part after part."""
        import torch

        for each, place, at in self.gates.beside((0, 1)):
            parts = [(2 * some.start + at * (some.stop - some.start), some) for some in self.columns()]
            found = [ups[start : start + some.stop - some.start, place] for start, some in parts]
            sums.add(each.up, torch.cat(found))

    def columns(self) -> Iterator[slice]:
        """Yield the columns of the gated product."""
        for start in range(0, self.inner, self.wide):
            yield slice(start, min(self.inner, start + self.wide))

    def _normed(self, middle: Any) -> Any:
        """Return the normed input, and beside it what the adapters of its layers make of it."""
        import torch

        x = torch.empty(len(middle), self.width + self.gates.rank, dtype=self.dtype, device=middle.device)
        self.small.norm(middle, self.parts.second_norm, self.parts.eps, out=x[:, : self.width])
        if self.gates.rank:
            torch.mm(x[:, : self.width], self.gates.downs.T, out=x[:, self.width :])
        return x

    def _behind(self, outer: Any) -> Any:
        """Return the gradient of the result, and beside it that of what the last adapter has in its middle."""
        import torch

        found = torch.empty(len(outer), self.width + self.down.rank, dtype=self.dtype, device=outer.device)
        found[:, : self.width] = outer
        if self.down.rank > self.down.places[0].stop:
            found[:, self.width :].zero_()
        for each, place in self.down.present():
            part = found[:, self.width + place.start : self.width + place.stop]
            torch.mm(outer, each.up.to(self.dtype), out=part)
        return found

    def _gates(self, some: slice) -> Any:
        """Return the weights of both first products, one below the other, what goes up beside each."""
        return once(self.kept, ("gates", some.start), lambda: self._made_gates(some))

    def _made_gates(self, some: slice) -> Any:
        import torch

        wide, width = some.stop - some.start, self.width
        out = torch.empty(2 * wide, width + self.gates.rank, dtype=self.dtype, device=self.packed[0].data.device)
        halves = out.view(2, wide, -1)
        self.small.unpack_both(self.packed[0], self.packed[1], some, slice(0, width), halves[:, :, :width])
        if self.gates.rank:
            halves[:, :, width:].copy_(self.ups[:, some])
        return out

    def _down(self, some: slice, *, back: bool) -> Any:
        """Return some columns of the last weight, for the way `back` with what goes down below it."""
        return once(self.kept, ("down", some.start), lambda: self._made_down(some, self.down.rank if back else 0))

    def _made_down(self, some: slice, more: int) -> Any:
        import torch

        wide, width = some.stop - some.start, self.width
        out = torch.empty(width + more, wide, dtype=self.dtype, device=self.packed[2].data.device)
        self.small.unpack(self.packed[2], slice(0, width), some, out[:width])
        if more:
            out[width:].copy_(self.down.downs[:, some])
        return out


def packed(parts: Parts) -> tuple[Packed, Packed, Packed] | None:
    """Return the weights of a layer's gated part as they are stored, or None where it needs other means."""
    linear = (parts.gate, parts.up, parts.down)
    if any(each.bias is not None for each in linear):
        return None
    first, second, third = (each.stored() for each in linear)
    if first is None or second is None or third is None:
        return None
    even = all(each.block <= _EVEN and _EVEN % each.block == 0 for each in (first, second, third))
    return (first, second, third) if even and first.like(second) else None


def _more(before: Any, one: Any, other: Any) -> Any:
    """Return a product, added to what was there before, in its place."""
    return one @ other if before is None else before.addmm_(one, other)
