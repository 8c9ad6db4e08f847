"""Every method and adapter: a run that was killed ends as the undisturbed one, to the last bit."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workshop import ROOT, Forks, Workshop, metrics

DATA = ROOT / "recipes" / "data"
REWARDS = [{"kind": "length", "most": 20}, {"kind": "pattern", "pattern": "e", "weight": 0.3}]
# name -> the backend, and what differs from the tiny SFT recipe
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "cpt": ("unsloth", {"method": "cpt", "data": {"train": str(DATA / "demo-text.txt")}}),
    "dpo": ("unsloth", {"method": "dpo", "data": {"train": str(DATA / "demo-preferences.jsonl")}}),
    "dpo-hf": ("hf", {"method": "dpo", "data": {"train": str(DATA / "demo-preferences.jsonl")}}),
    "orpo": ("unsloth", {"method": "orpo", "data": {"train": str(DATA / "demo-preferences.jsonl")}}),
    "kto": ("unsloth", {"method": "kto", "data": {"train": str(DATA / "demo-preferences.jsonl")}}),
    "reward": ("hf", {"method": "reward", "data": {"train": str(DATA / "demo-preferences.jsonl")}}),
    "grpo": (
        "unsloth",
        {
            "method": {"kind": "grpo", "rewards": REWARDS, "generations": 4, "max_new_tokens": 8},
            "data": {"train": str(DATA / "demo-prompts.jsonl")},
        },
    ),
    "full": ("unsloth", {"adapter": "full"}),
    "full-hf": ("hf", {"adapter": "full"}),
    "rslora": ("unsloth", {"adapter": {"kind": "rslora", "r": 8, "dropout": 0.1}}),
    "dora": ("hf", {"adapter": {"kind": "dora", "r": 8, "dropout": 0.1}}),
    "packed": ("hf", {"data": {"train": "rows.jsonl", "packing": True}}),
}
QUICK = ("dpo", "full-hf", "grpo")
STEPS = 8


def result(run: Path) -> bytes:
    """Return the trained weights, whichever they are."""
    return b"".join(path.read_bytes() for path in sorted(run.glob("[am]*/*.safetensors")))


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in CASES]
)
def test_a_killed_run_ends_the_same(workshop: Workshop, forks: Callable[[str], Forks], name: str) -> None:
    backend, differs = CASES[name]
    recipe = workshop.recipe(
        f"resume-{name}",
        **{"schedule__steps": STEPS, "schedule__max_length": 256, "checkpoints": {"every": 1, "keep": 2}} | differs,
    )
    words = [recipe, "--set", f"backend={backend}", "--set", "precision=fp32", "--run-dir"]
    whole, cut = workshop.path / f"whole-{name}", workshop.path / f"killed-{name}"
    done = forks(backend).train(*words, whole)
    assert done.code == 0, done.err
    step = random.Random(name).randrange(2, STEPS - 1)
    kill = {"signal": signal.SIGKILL, "step": step, "metrics": str(cut / "metrics.jsonl")}
    killed = forks(backend).train(*words, cut, kill=kill)
    assert killed.code == -signal.SIGKILL, killed.out
    again = forks(backend).train(*words, cut, "--resume")
    assert again.code == 0, again.err
    assert "resume    from step" in again.out
    told = ("step", "loss", "lr", "grad_norm", "tokens")
    assert [[row[key] for key in told] for row in metrics(cut)] == [
        [row[key] for key in told] for row in metrics(whole)
    ]
    assert len(result(whole)) > 10_000
    assert result(cut) == result(whole)
