"""What the parts of gpu_cluster train: a run after the other, each a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

# Rows of a pass, passes of a step, tokens of a row.
FAST, SLOW, TINY = (2, 4, 2048), (2, 16, 2048), (2, 2, 64)


@dataclass(frozen=True)
class Run:
    """One run. `alone`: process 0 trains while the others wait; `lone`: it is a group of its own."""

    name: str
    strategy: dict[str, Any]
    alone: bool = False
    lone: bool = False

    def ranks(self, most: int) -> int:
        """Return how many of `most` processes train."""
        return 1 if self.alone or self.lone else most


ALONE = Run("one process", {"kind": "none"}, alone=True)
PARTS: dict[str, tuple[Run, ...]] = {
    "fast": (
        ALONE,
        Run("ddp", {"kind": "ddp"}),
        Run("fsdp, once a step", {"kind": "fsdp", "keep": "step"}),
        Run("fsdp, every pass", {"kind": "fsdp", "keep": "nothing"}),
        Run("deepspeed zero-3", {"kind": "deepspeed", "stage": 3}),
    ),
    "slow": (
        Run("ddp over tcp", {"kind": "ddp"}),
        Run("fsdp over tcp", {"kind": "fsdp"}),
    ),
    "one": (
        ALONE,
        Run("ddp of one", {"kind": "ddp"}, lone=True),
        Run("fsdp of one, once", {"kind": "fsdp", "keep": "step"}, lone=True),
        Run("fsdp of one, every", {"kind": "fsdp", "keep": "nothing"}, lone=True),
        # how far the same is apart from itself: a GPU that gets warm gets slow
        Run("one process, again", {"kind": "none"}, alone=True),
    ),
}
SEVERAL = ("fast", "slow")


def recipe(folder: Path, run: Run, size: tuple[int, int, int], steps: int) -> Path:
    """Write a run's recipe."""
    rows, passes, length = size
    value = {
        "model": str(folder / "model"),
        "data": str(folder / "text.jsonl"),
        "method": "cpt",
        "backend": "hf",
        "adapter": {"kind": "lora", "r": 16, "alpha": 16},
        "strategy": run.strategy,
        "recompute": "on",
        "precision": "bf16",
        "schedule": {
            "steps": steps,
            "batch": rows,
            "accumulation": passes,
            "learning_rate": 1e-4,
            "scheduler": "constant",
            "warmup": 0,
            "max_length": length,
            "seed": 3,
        },
        "checkpoints": {"every": 0},
    }
    path = folder / f"{short(run.name)}.yaml"
    path.write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")
    return path


def short(name: str) -> str:
    """Return a run's name as files have it."""
    return "-".join(name.replace(",", "").split())
