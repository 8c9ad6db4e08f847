"""Every recipe that ships runs on a tiny random model of its family; only model, length and precision differ."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import tiny_families
import yaml
from scenarios import SHIPPED
from workshop import ROOT, Done, Workshop, metrics, report

# The beginning of a recipe's name -> the tiny model that stands for its own.
STANDS_FOR = {
    "demo": "llama",
    "llama3.1": "llama",
    "qwen3-": "qwen3",
    "qwen3.5": "qwen3_5",
    "gemma3-1b": "gemma3",
    "gemma3-": "gemma3_pictures",
    "gemma4": "gemma4",
    "gpt-oss": "gpt_oss",
}
RECIPES = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted((ROOT / "recipes").glob("*.yaml"))
    if path.stem not in SHIPPED
}
# Those of bitsandbytes where it is installed, as in the image.
HERE = [name for name, recipe in RECIPES.items() if "qlora" not in str(recipe["adapter"]) or find_spec("bitsandbytes")]


def family(name: str) -> str:
    """Return the tiny model for a recipe."""
    return next(model for beginning, model in STANDS_FOR.items() if name.startswith(beginning))


def words(name: str) -> list[str]:
    """Return the command of a recipe: its own backend, two steps."""
    changed = [f"model={family(name)}", "schedule.epochs=null", "schedule.steps=2", "schedule.max_length=256"]
    changed += ["checkpoints.every=0", "precision=bf16"]
    if isinstance(RECIPES[name].get("method"), dict) and RECIPES[name]["method"]["kind"] == "grpo":
        changed.append("method.max_new_tokens=8")
    settings = [word for each in changed for word in ("--set", each)]
    return [str(ROOT / "recipes" / f"{name}.yaml"), *settings, "--run-dir", f"shipped-{name}"]


@pytest.fixture(scope="module")
def done(workshop: Workshop) -> dict[str, Done]:
    """The runs of all recipes, a few processes in all."""
    for name in tiny_families.FAMILIES:
        if not (workshop.path / "models" / name).is_dir():
            tiny_families.make(name, workshop.path / "models" / name)
    found: dict[str, Done] = {}
    # plain transformers for some, Unsloth for others: which one a recipe takes, it says itself
    for group in ([name for name in HERE if _plain(name)], [name for name in HERE if not _plain(name)]):
        found |= dict(zip(group, workshop.several([words(name) for name in group]), strict=True))
    return found


def _plain(name: str) -> bool:
    """Whether a recipe is for plain transformers: Unsloth changes the libraries of its process for good."""
    return "reward" in name or "dora" in name


@pytest.mark.parametrize("name", HERE)
def test_a_recipe_runs(done: dict[str, Done], workshop: Workshop, name: str) -> None:
    run: Path = workshop.path / f"shipped-{name}"
    assert (done[name].code, done[name].err) == (0, ""), done[name].out
    found = report(run)
    assert found["steps_done"] == 2
    assert found["backend"] == ("hf" if _plain(name) else "unsloth")
    assert all(row["grad_norm"] >= 0 for row in metrics(run))
    full = RECIPES[name]["adapter"] == "full"
    assert (run / ("model" if full else "adapter")).is_dir()
    if "pictures" in family(name):
        # training on text leaves the parts for pictures alone
        from safetensors import safe_open

        with safe_open(run / "adapter" / "adapter_model.safetensors", "pt") as file:
            assert not any("vision" in key or "multi_modal" in key for key in file.keys())  # noqa: SIM118
