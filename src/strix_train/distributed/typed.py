"""The type of a model's weights, given to one part of the model after the other.

A model that is loaded as it is stored lies in its files, which are mapped: in memory is only what was changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Typed:
    """Gives weights of the type `stored` the type `wanted`, but for modules that must keep 32 bits, by their names.

    `adapter`: what learns is one, and has the type that peft gave it.
    """

    stored: Any
    wanted: Any
    adapter: bool = False
    kept: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: Any, wanted: Any) -> Typed:
        """Return what a model needs. `wanted`: torch's type, None for what the weights have."""
        import torch

        adapter = hasattr(model, "peft_config")
        inner = model.get_base_model() if adapter else model
        narrow = {torch.float16: ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")}
        names = narrow.get(wanted, ("_keep_in_fp32_modules_strict",)) if wanted != torch.float32 else ()
        kept = tuple(sorted({word for name in names for word in getattr(inner, name, None) or ()}))
        return cls(getattr(inner, "dtype", None), wanted, adapter, kept)

    def give(self, module: Any) -> None:
        """Change what lies in `module` and is not in pieces yet."""
        if self.wanted is None or self.wanted == self.stored:
            return
        for name, weight in module.named_parameters():
            ready = (
                hasattr(weight, "to_local") or weight.dtype != self.stored or (self.adapter and weight.requires_grad)
            )
            # as transformers matches them, before peft has put layers of its own between
            plain = name.replace(".base_layer", "")
            if not ready and not any(re.search(rf"(^|\.){word}(\.|$)", plain) for word in self.kept):
                weight.data = weight.data.to(self.wanted)
