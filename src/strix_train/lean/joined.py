"""The way back through queries, keys and values whose weights are stored in 4 bits: one product for all three.

Their weights are made one below the other, with what goes up of their adapters beside them, as `columns` does it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from strix_train.lean.columns import Adapters
from strix_train.lean.fourbit import Packed
from strix_train.lean.linear import Gradients, once
from strix_train.lean.parts import Parts


class Joined:
    """These layers of one decoder layer, for one pass back over it. `dense`: see `linear.Shared`."""

    def __init__(
        self, parts: Parts, packed: tuple[Packed, ...], small: ModuleType, dtype: Any, dense: dict[Any, Any] | None
    ) -> None:
        import torch

        self.packed, self.small, self.dtype, self.kept = packed, small, dtype, dense
        self.width, self.sizes = packed[0].columns, [each.rows for each in packed]
        self.device = packed[0].data.device
        self.adapters = Adapters((parts.queries, parts.keys, parts.values), self.width, dtype, self.device)
        # what goes up, below each other as the weights: beside each its own, and zeros
        self.ups = torch.zeros(sum(self.sizes), self.adapters.rank, dtype=dtype, device=self.device)
        for each, place, part in self.adapters.beside(self.ups.split(self.sizes)):
            part[:, place].copy_(each.up)

    def share(self) -> None:
        """Let those who multiply with one of the weights alone have it from here, where weights are kept."""
        if self.kept is not None:
            parts = self._weights().split(self.sizes)
            self.kept |= {
                id(each): part[:, : self.width] for each, part in zip(self.adapters.projections, parts, strict=True)
            }

    def room(self, tokens: int) -> tuple[Any, tuple[Any, ...]]:
        """Return room for the gradients of queries, keys and values, (tokens, all of them), and each one's part."""
        import torch

        found = torch.empty(tokens, sum(self.sizes), dtype=self.dtype, device=self.device)
        return found, found.split(self.sizes, dim=1)

    def back(self, x: Any, grads: Any, sums: Gradients, *, wanted: bool) -> Any:
        """Return the gradient of the input, of `room`'s; add those of the adapters to `sums`. Not `wanted`: None.

        Rows of what is returned may stand apart.
        """
        import torch

        result = grads @ self._weights() if wanted else None
        rank = self.adapters.rank
        if rank:
            inner = grads @ self.ups if result is None else result[:, self.width :]
            ups = grads.T @ (x @ self.adapters.downs.T)
            for each, place, part in self.adapters.beside(ups.split(self.sizes)):
                sums.add(each.up, part[:, place])
            self.adapters.add_downs(sums, inner.T @ x)
            if result is not None:
                torch.addmm(result[:, : self.width], inner, self.adapters.downs, out=result[:, : self.width])
        return None if result is None else result[:, : self.width]

    def _weights(self) -> Any:
        return once(self.kept, "joined", self._made)

    def _made(self) -> Any:
        import torch

        out = torch.empty(sum(self.sizes), self.width + self.adapters.rank, dtype=self.dtype, device=self.device)
        for each, part in zip(self.packed, out.split(self.sizes), strict=True):
            self.small.unpack(each, slice(0, each.rows), slice(0, each.columns), part[:, : self.width])
        out[:, self.width :].copy_(self.ups)
        return out


def packed(parts: Parts) -> tuple[Packed, ...] | None:
    """Return the weights as they are stored, or None where they need other means."""
    found = [each for each in (part.stored() for part in (parts.queries, parts.keys, parts.values)) if each is not None]
    return tuple(found) if len(found) == 3 else None
