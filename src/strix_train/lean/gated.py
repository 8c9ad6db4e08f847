"""The gated part of a layer whose weights are there, or are made one at a time."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from strix_train.lean.linear import Gradients, Shared
from strix_train.lean.parts import Parts


class Gated:
    """The gated part of one layer, for one pass over it. `dense`: see `Shared`."""

    def __init__(self, parts: Parts, small: ModuleType, dtype: Any, dense: dict[Any, Any] | None) -> None:
        self.parts, self.small, self.dtype = parts, small, dtype
        self.gates = Shared((parts.gate, parts.up), small, dtype, dense)
        self.down = Shared((parts.down,), small, dtype, dense)

    def ahead(self, middle: Any, out: Any) -> Any:
        """Write the layer's result into `out`, of the sum behind attention; both are (tokens, width).

        Returns what `back` is given: what goes down gave, (tokens, rank), or None.
        """
        _, _, second, first = self._products(middle)
        gated = self.small.gate(first, second)
        del first, second
        low_down = self.down.low(gated)
        self.down.ahead(gated, low_down, self.parts.down, out).add_(middle)
        return low_down

    def back(self, middle: Any, low_down: Any, outer: Any, sums: Gradients) -> None:
        """Turn `middle`, in its own place, into its gradient, of that of the result; `low_down`: see `ahead`."""
        parts = self.parts
        normed, low, second, first = self._products(middle)
        # the gradient of the gated product needs no gated product, that of the adapter behind it does
        grad = self._down_gradient(outer)
        self.small.gate_back(first, second, grad)
        self.down.back(grad, low_down, [outer], sums, wanted=False)
        del grad
        inner = self.gates.back(normed, low, [first, second], sums)
        del first, second, normed
        self.small.norm_back(inner, middle, parts.second_norm, parts.eps, outer, out=middle)

    def _products(self, middle: Any) -> tuple[Any, Any, Any, Any]:
        """Return the normed input, its low-rank part, the second product, and the first."""
        normed = self.small.norm(middle, self.parts.second_norm, self.parts.eps)
        low = self.gates.low(normed)
        first, second = (self.gates.ahead(normed, low, each) for each in self.gates.projections)
        return normed, low, second, first

    def _down_gradient(self, outer: Any) -> Any:
        """Return the gradient of what the last projection takes."""
        import torch

        each, place = self.parts.down, self.down.places.get(id(self.parts.down))
        weight = self.down.dense(each)
        if place is None:
            return outer @ weight
        part = torch.empty(len(outer), self.down.rank, dtype=self.dtype, device=outer.device)
        torch.addmm(part, outer, self.down.ups[id(each)], beta=0, alpha=each.scale, out=part)
        return (part @ self.down.downs).addmm_(outer, weight)
