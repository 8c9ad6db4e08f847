"""Frozen linear layers that share an input, with their low-rank adapters: forward, and their gradients by hand.

The low-rank part of a result is written first, and the large product added to it where it is made: one pass over the
result less than the other way round. All tensors are (tokens, width).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from strix_train.lean.parts import Projection


class Gradients:
    """The gradients of adapters' weights, summed in 32 bits over slices; by weight."""

    def __init__(self) -> None:
        # by scale: adapters that share a weight may have several
        self._sums: dict[int, dict[float, Any]] = {}

    def add(self, weight: Any, found: Any, scale: float = 1.0) -> None:
        """Add what one slice gives, times `scale`."""
        sums = self._sums.setdefault(id(weight), {})
        before = sums.get(scale)
        # the first one is widened where there is a second
        sums[scale] = found if before is None else before.float().add_(found)

    def take(self, weights: Sequence[Any]) -> list[Any]:
        """Return the gradients of weights, each in its own type; one that nothing was added to is None."""
        import torch

        sums = [_one(self._sums.pop(id(weight), {})) for weight in weights]
        made = [None if each is None else torch.empty_like(weight) for weight, each in zip(weights, sums, strict=True)]
        pairs = [(to, *each) for to, each in zip(made, sums, strict=True) if each is not None]
        if pairs:
            # all at once: there are two for each of seven layers, and starting is what small work costs
            torch._foreach_copy_([to for to, _, _ in pairs], [found for _, found, _ in pairs])
            torch._foreach_mul_([to for to, _, _ in pairs], [scale for _, _, scale in pairs])
        return made


def _one(sums: dict[float, Any]) -> tuple[Any, float] | None:
    """Return one sum and its scale, of those of several scales; None where there is none."""
    if len(sums) < 2:
        return next(((found, scale) for scale, found in sums.items()), None)
    return sum(found.float() * scale for scale, found in sums.items()), 1.0


def once(kept: dict[Any, Any] | None, key: Any, make: Callable[[], Any]) -> Any:
    """Return what `make` makes; where that is kept, it is made once."""
    if kept is None:
        return make()
    if key not in kept:
        kept[key] = make()
    return kept[key]


def cast(groups: Sequence[Shared]) -> None:
    """Give layers their adapters' weights in the type that they are multiplied in, all at once."""
    import torch

    made = [each for group in groups for each in group.wanted]
    if made:
        torch._foreach_copy_([to for to, _ in made], [weight for _, weight in made])


class Shared:
    """Linear layers of one input, with the adapters' weights as they are multiplied with, once `cast` was called.

    `small`: the module of the small steps. `dense`: where weights are kept that had to be made of 4 bits, since they
    are multiplied with several times.
    """

    def __init__(
        self, projections: Sequence[Projection], small: ModuleType, dtype: Any, dense: dict[Any, Any] | None = None
    ) -> None:
        import torch

        self.projections, self.small, self.dtype, self.kept = projections, small, dtype, dense
        adapted = [each for each in projections if each.down is not None]
        self.places: dict[int, slice] = {}
        self.wanted: list[tuple[Any, Any]] = []
        at = 0
        for each in adapted:
            self.places[id(each)] = slice(at, at + each.down.shape[0])
            at += each.down.shape[0]
        self.rank = at
        if not adapted:
            return
        device = adapted[0].down.device
        self.downs = torch.empty(at, adapted[0].down.shape[1], dtype=dtype, device=device)
        self.ups = {id(each): torch.empty(each.up.shape, dtype=dtype, device=device) for each in adapted}
        self.wanted = [(self.downs[self.places[id(each)]], each.down) for each in adapted]
        self.wanted += [(self.ups[id(each)], each.up) for each in adapted]

    def dense(self, each: Projection) -> Any:
        """Return a weight as it is multiplied with; one that has to be made for it is made once, where it is kept."""
        return once(self.kept if each.quantized else None, id(each), lambda: each.dense(self.dtype, self.small))

    def low(self, x: Any) -> Any:
        """Return what all adapters make of an input, (tokens, ranks), or None where there is none."""
        return x @ self.downs.T if self.rank else None

    def ahead(self, x: Any, low: Any, each: Projection, out: Any = None) -> Any:
        """Return one layer's result, written into `out` where that is given."""
        import torch

        weight = self.dense(each)
        if out is None:
            out = torch.empty(len(x), weight.shape[0], dtype=self.dtype, device=x.device)
        place = self.places.get(id(each))
        if place is None:
            torch.mm(x, weight.T, out=out)
        else:
            torch.addmm(out, low[:, place], self.ups[id(each)].T, beta=0, alpha=each.scale, out=out)
            out.addmm_(x, weight.T)
        return out if each.bias is None else out.add_(each.bias)

    def back(
        self, x: Any, low: Any, grads: Sequence[Any], sums: Gradients, *, wanted: bool = True, out: Any = None
    ) -> Any:
        """Return the gradient of the input, of those of all results; add those of the adapters to `sums`.

        `out`: where it is written. Not `wanted`: None is returned, and it is not computed.
        """
        import torch

        inner = torch.empty(len(x), self.rank, dtype=self.dtype, device=x.device) if self.rank else None
        for each, grad in zip(self.projections, grads, strict=True):
            place = self.places.get(id(each))
            if place is not None and inner is not None:
                part = inner[:, place]
                torch.addmm(part, grad, self.ups[id(each)], beta=0, alpha=each.scale, out=part)
                sums.add(each.up, grad.T @ low[:, place], each.scale)
        if inner is not None:
            downs = inner.T @ x
            for each in self.projections:
                place = self.places.get(id(each))
                if place is not None:
                    sums.add(each.down, downs[place])
        if not wanted:
            return None
        if out is None:
            out = torch.empty(len(x), x.shape[1], dtype=self.dtype, device=x.device)
        started = inner is not None
        if inner is not None:
            torch.mm(inner, self.downs, out=out)
        for each, grad in zip(self.projections, grads, strict=True):
            weight = self.dense(each)
            if started:
                out.addmm_(grad, weight)
            else:
                torch.mm(grad, weight, out=out)
                started = True
            del weight  # or it would live beside the next one
        return out
