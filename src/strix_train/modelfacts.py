"""What a model's config.json says that decides how it may be computed. No library is imported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Gemma 4 keeps the width of its global layers apart, and leaves it out where it is the usual one.
_GLOBAL = {"gemma4": 512, "gemma4_text": 512}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`kinds`: the model's type and its text part's. `head_width`: the widest attention head, 0 where unknown.

    `scores`: it gives a text numbers instead of words.
    """

    kinds: tuple[str, ...] = ()
    head_width: int = 0
    experts: bool = False
    scores: bool = False

    def is_of(self, *families: str) -> bool:
        """Whether the type begins with one of these words: gemma3 is also gemma3_text and gemma3n."""
        return any(kind.startswith(families) for kind in self.kinds)


def read(folder: Path) -> ModelFacts:
    """Return the facts of a model folder; none where it has no readable config.json."""
    try:
        value = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ModelFacts()
    return of_config(value) if isinstance(value, dict) else ModelFacts()


def of_config(config: Mapping[str, Any]) -> ModelFacts:
    """Return the facts of a configuration."""
    inner = config.get("text_config")
    parts = [config, inner] if isinstance(inner, Mapping) else [config]
    kinds = tuple(dict.fromkeys(str(part["model_type"]) for part in parts if part.get("model_type")))
    names = {name for part in parts for name in part}
    experts = any(name.endswith("experts") and not name.startswith("shared") for name in names)
    named = config.get("architectures")
    scores = isinstance(named, list) and any(str(name).endswith("ForSequenceClassification") for name in named)
    return ModelFacts(kinds, max((_width(part) for part in parts), default=0), experts, scores)


def _width(part: Mapping[str, Any]) -> int:
    heads, hidden = part.get("num_attention_heads"), part.get("hidden_size")
    widths = [part.get("head_dim"), part.get("global_head_dim")]
    if not widths[0] and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        widths[0] = hidden // heads
    if not widths[1]:
        widths[1] = _GLOBAL.get(str(part.get("model_type")), 0)
    return max((width for width in widths if isinstance(width, int)), default=0)
