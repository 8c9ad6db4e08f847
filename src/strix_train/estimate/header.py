"""The line about memory in the head of a recipe that ships."""

from __future__ import annotations

from pathlib import Path

from strix_train.estimate import configs, shapes
from strix_train.estimate.command import each_backend
from strix_train.estimate.machines import GIB, NAMED, Machine
from strix_train.estimate.words import size
from strix_train.recipe.load import load

BEGINS = "# Memory on a "
# The demo's model is made of a file, and trains on a CPU.
_DEMO = "HuggingFaceTB/SmolLM2-135M-Instruct"
_WORDS = {"unsloth": "with Unsloth", "hf": "with plain transformers"}


def line(path: Path) -> str:
    """Return the line for a recipe: what it needs with rows that fill max_length."""
    loaded = load(path)
    demo = loaded.recipe.model == "demo"
    machine = Machine("CPU", "cpu", 8 * GIB) if demo else NAMED["strix-halo"]
    shape = shapes.of_config(configs.known()[_DEMO if demo else loaded.recipe.model])
    found = each_backend(loaded, shape, machine, None)
    parts = [f"{size(each.needed)} {_WORDS[name]}" for name, each in found.items() if each]
    return f"{BEGINS}{'CPU' if demo else 'Strix Halo'} (train estimate): {', '.join(parts)}."


def written(text: str, wanted: str) -> str:
    """Return a recipe's text with the line as the last one of its head."""
    lines = [each for each in text.splitlines() if not each.startswith(BEGINS)]
    end = next(index for index, each in enumerate(lines) if not each.startswith("#"))
    return "\n".join([*lines[:end], wanted, *lines[end:]]) + "\n"
