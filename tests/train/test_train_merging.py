"""Merged exports that need more than a merge: of a weight that two layers share, and of a model trained whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from workshop import Done, Workshop

SHARED = {"last": ["lm_head", "q_proj"], "first": ["embed_tokens", "q_proj"], "both": ["lm_head", "embed_tokens"]}
FAMILIES = ("llama", "gemma3")


@pytest.fixture(scope="module")
def done(workshop: Workshop) -> dict[str, Done]:
    """The runs and what was made of them, in one process."""
    _in_16_bits(workshop.path / "models" / "llama", workshop.path / "models" / "b16")
    commands: dict[str, list[str]] = {}
    for family in FAMILIES:
        for name, targets in SHARED.items():
            run = f"shared-{family}-{name}"
            workshop.recipe(run, model=family, adapter={"r": 8, "targets": targets}, schedule__steps=30)
            commands[f"train-{run}"] = [f"{run}.yaml", "--run-dir", run, "--set", "backend=hf"]
            commands[run] = ["export", run, "--as", "merged"]
    workshop.recipe("b16", model="b16", adapter="full", precision="fp32", schedule__steps=3)
    commands["train-b16"] = ["b16.yaml", "--run-dir", "run-b16", "--set", "backend=hf"]
    commands["b16"] = ["export", "run-b16", "--as", "merged"]
    return dict(zip(commands, workshop.several(list(commands.values())), strict=True))


def _in_16_bits(model: Path, target: Path) -> None:
    import shutil

    import torch
    from transformers import AutoModelForCausalLM

    shutil.copytree(model, target)
    AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).save_pretrained(target)


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_learned_for_one_end_stays_there(
    done: dict[str, Done], workshop: Workshop, family: str, name: str
) -> None:
    """The first and the last layer share a weight; the merged model has the trained one's logits all the same."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = f"shared-{family}-{name}"
    assert done[f"train-{run}"].code == 0, done[f"train-{run}"].err
    assert done[run].code == 0, done[run].err
    folder = workshop.path / run
    base = AutoModelForCausalLM.from_pretrained(workshop.path / "models" / family, dtype=torch.float32)
    tokens = AutoTokenizer.from_pretrained(folder / "adapter")("What follows red? After", return_tensors="pt")
    alone = AutoModelForCausalLM.from_pretrained(folder / "export" / "merged", dtype=torch.float32).eval()
    with torch.no_grad():
        plain = base(**tokens).logits
        trained = PeftModel.from_pretrained(base, str(folder / "adapter")).eval()(**tokens).logits
        assert torch.allclose(alone(**tokens).logits, trained, atol=2e-3)
    assert float((plain - trained).abs().max()) > 0.5


def test_a_model_trained_whole_is_no_larger_than_before(done: dict[str, Done], workshop: Workshop) -> None:
    """Its weights learn in 32 bits, and are written in the 16 that the model came with."""
    assert done["train-b16"].code == 0, done["train-b16"].err
    assert done["b16"].code == 0, done["b16"].err
    merged = workshop.path / "run-b16" / "export" / "merged"
    before = (workshop.path / "models" / "b16" / "model.safetensors").stat().st_size
    assert (merged / "model.safetensors").stat().st_size == pytest.approx(before, rel=0.01)
    assert json.loads((merged / "config.json").read_text())["dtype"] == "bfloat16"
    assert (workshop.path / "run-b16" / "model" / "model.safetensors").stat().st_size > 1.9 * before
