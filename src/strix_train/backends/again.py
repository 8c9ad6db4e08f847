"""What transformers' trainer does for each pass, and need do once: to walk over all modules, which takes a while."""

from __future__ import annotations

import functools
from typing import Any


def counted(base: Any) -> Any:
    """Return a trainer class that counts the model's weights once, where `base` does so for each pass."""

    class Counted(base):  # type: ignore[misc]
        """The trainer, whose operations are known from its weights and tokens."""

        @functools.cached_property
        def _weights(self) -> int:
            return int(self.model.num_parameters(exclude_embeddings=True))

        def floating_point_ops(self, inputs: Any) -> int:
            ids = inputs.get("input_ids")
            return int(super().floating_point_ops(inputs)) if ids is None else 6 * ids.numel() * self._weights

    return Counted


def remember(model: Any, *parts: Any) -> None:
    """Let `model.train()` change nothing where the model and those `parts` of it train, or do not, already."""
    plain = model.train

    @functools.wraps(plain)
    def train(mode: bool = True) -> Any:
        if all(each.training == mode for each in (model, *parts)):
            return model
        return plain(mode)

    model.train = train
