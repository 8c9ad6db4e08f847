"""`train estimate` beside the libraries: the same weights, and the bytes of the tensors that really live in a step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_families
import tiny_models as tiny
from live import Live
from workshop import Done, Forks, Workshop

from strix_train.backends import chunkedloss
from strix_train.estimate import configs, memory, shapes
from strix_train.estimate.memory import Wish

# Real shapes with fewer layers; nothing is held, since the tensors are fake.
SHAPES = ("unsloth/Meta-Llama-3.1-8B", "Qwen/Qwen3-4B", "unsloth/gemma-3-1b-it")
CASES = [
    ("lora", 16, True, "sdpa"),
    ("lora", 16, False, "sdpa"),
    ("lora", 32, False, "sdpa"),
    ("lora", 16, False, "eager"),
    ("full", 16, True, "sdpa"),
]


@pytest.mark.parametrize("family", [*tiny.FAMILIES, *tiny_families.FAMILIES])
def test_weights_are_counted(workshop: Workshop, family: str) -> None:
    from transformers import AutoModelForCausalLM

    folder = workshop.path / "models" / family
    if not folder.is_dir():
        tiny_families.make(family, folder)
    model = AutoModelForCausalLM.from_pretrained(str(folder))
    shape = shapes.of_config(json.loads((folder / "config.json").read_text()))
    assert shape.weights == sum(weight.numel() for weight in model.parameters())
    assert shape.exact


def config(name: str) -> dict[str, Any]:
    """Return a real configuration with four layers."""
    value = dict(configs.known()[name])
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    return value | {"num_hidden_layers": 4} | ({"layer_types": kinds} if "gemma" in name else {})


def peak(name: str, adapter: str, bits: int, again: bool, attention: str) -> int:
    """Return the bytes at the peak of a step's forward and backward pass, with the states of its optimizer."""
    import torch
    from peft import LoraConfig, get_peft_model
    from peft.tuners.tuners_utils import BaseTunerLayer
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import AutoConfig, AutoModelForCausalLM

    value = config(name)
    made = AutoConfig.for_model(value.pop("model_type"), **value)
    with pytest.MonkeyPatch.context() as patch, FakeTensorMode(allow_non_fake_inputs=True):
        held = torch.float32 if adapter == "full" or bits == 32 else torch.bfloat16
        model = AutoModelForCausalLM.from_config(made, attn_implementation=attention, dtype=held)
        model.config.use_cache = False
        if adapter == "lora":
            for weight in model.parameters():
                weight.requires_grad_(False)
            model.enable_input_require_grads()
            # fake parameters cannot be moved, and are where they belong
            patch.setattr(BaseTunerLayer, "_move_adapter_to_device_of_base_layer", lambda *args, **kwargs: None)
            with pytest.MonkeyPatch.context() as inner:
                inner.setattr(torch.nn.Module, "to", lambda self, *args, **kwargs: self)
                model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
        if again:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        ids = torch.zeros((2, 1024), dtype=torch.long)
        places = torch.arange(1024)[None].expand(2, 1024)
        base = model.get_base_model() if adapter == "lora" else model
        learns = [weight for weight in model.parameters() if weight.requires_grad]
        with Live([*model.parameters(), *model.buffers()]) as live:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bits == 16):
                hidden = base.model(input_ids=ids, position_ids=places)[0]
                loss = chunkedloss._summed().apply(
                    hidden.reshape(-1, hidden.shape[-1]), base.lm_head.weight, ids.reshape(-1), None
                )
            del hidden
            loss.backward()
        return live.peak + sum(2 * weight.numel() * weight.element_size() for weight in learns)


@pytest.mark.parametrize(
    ("name", "adapter", "bits", "again", "attention"),
    [*((name, *case) for name in SHAPES for case in CASES), ("unsloth/gpt-oss-20b", "lora", 16, False, "eager")],
)
def test_live_tensors_are_met(name: str, adapter: str, bits: int, again: bool, attention: str) -> None:
    wish = Wish(
        shapes.of_config(config(name)),
        adapter=adapter,
        rows=2,
        length=1024,
        accumulation=1,
        bits=bits,
        recompute=again,
        eager=attention == "eager",
        gpu=False,
    )
    measured, found = peak(name, adapter, bits, again, attention), memory.parts(wish)
    if adapter == "full" and wish.shape.tied:
        # autograd adds the second gradient of a weight in the place of the first, but not where they are fake
        measured -= wish.shape.head * wish.learning
    assert found.total == pytest.approx(measured, rel=0.06)
    moving = found.total - found.weights - found.optimizer
    assert moving == pytest.approx(measured - found.weights - found.optimizer, rel=0.15)


def test_a_run_tells_its_estimate(runs: dict[str, Done], forks: Callable[[str], Forks]) -> None:
    [told] = [line for line in runs["run-hf"].out.splitlines() if line.startswith("estimate ")]
    assert " of " in told
    assert " a step" in told
    dry = forks("hf").train("llama.yaml", "--dry-run", "--set", "backend=hf")
    assert dry.code == 0
    assert "\nestimate " in dry.out
    six = ["schedule.batch=auto", "schedule.accumulation=6"]
    auto = forks("hf").train("llama.yaml", "--dry-run", "--set", "backend=hf", *[w for s in six for w in ("--set", s)])
    assert "30 steps of 6 × 1 rows" in auto.out


def test_the_whole_process_is_met(workshop: Workshop, forks: Callable[[str], Forks], tmp_path: Path) -> None:
    """What a run reports as its peak beside `train estimate`: a model of no size, so the libraries for the most."""
    recipe = workshop.recipe("sized", backend="hf", schedule__steps=2)
    told = forks("hf").train("estimate", recipe, "--device", "cpu", "--json")
    assert told.code == 0, told.err
    done = forks("hf").train(recipe, "--run-dir", tmp_path / "run")
    assert done.code == 0, done.err
    # no row is as long as max_length, which is 128
    assert 20 < json.loads(told.out)["run"]["length"] < 60
    measured = json.loads((tmp_path / "run" / "report.json").read_text())["peak_memory"]
    assert json.loads(told.out)["backends"]["hf"]["needed"] == pytest.approx(measured, rel=0.35)
