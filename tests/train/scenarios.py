"""The runs that share a process: by name, the backend and the words of the command."""

from __future__ import annotations

from collections.abc import Iterator

import tiny_models as tiny
from workshop import ROOT, Workshop

STEPS = 40
SHIPPED = {"llama3.1-8b-lora": "llama", "qwen3-4b-lora": "qwen3", "gemma3-4b-lora": "gemma3"}
_NAN = "the loss became nan at step 1, so the run was stopped; there is no checkpoint from before it; try a lower"
# settings that make a run fail: the exit code, the sentence
WRONG: dict[str, tuple[str, list[str], int, str]] = {
    "wrong-nan": (
        "unsloth",
        ["model=broken"],
        1,
        _NAN,
    ),
    "wrong-nan-hf": (
        "hf",
        ["model=broken"],
        1,
        _NAN,
    ),
    "wrong-length": (
        "hf",
        ["schedule.max_length=8"],
        2,
        "24 of 24 rows lose their whole answer to max_length (8 tokens)",
    ),
    "wrong-template": ("hf", ["model=bare"], 2, "rows.jsonl:1:1: the rows are conversations and the model has no chat"),
    "wrong-targets": ("hf", ["adapter.targets=[q_proj, k_prj]"], 2, "no module 'k_prj'; did you mean 'k_proj'?"),
    "wrong-file": ("hf", ["model=cut"], 1, "training failed: SafetensorError: "),
    "wrong-fp16": ("hf", ["precision=fp16"], 2, "fp16 cannot be trained on a CPU; write precision: auto, bf16 or fp32"),
}


def settings(*values: str) -> list[str]:
    """Return --set options."""
    return [word for value in values for word in ("--set", value)]


def scenarios(workshop: Workshop) -> Iterator[tuple[str, tuple[str, list[str]]]]:
    """Yield (name, (backend, words)), and write the recipes that they need."""
    question = [{"prompt": "What follows red?", "expect": "green"}]
    for family in tiny.FAMILIES:
        workshop.recipe(
            family,
            model=family,
            data__eval=str(workshop.path / "eval.jsonl"),
            precision="fp32",
            schedule__steps=30,
            questions=question,
        )
        yield f"run-{family}", ("unsloth", [f"{family}.yaml"])
    yield "run-hf", ("hf", ["llama.yaml"])
    # Dropout makes the state of the random numbers matter.
    workshop.recipe(
        "long",
        adapter__dropout=0.1,
        schedule__steps=STEPS,
        schedule__scheduler="cosine",
        schedule__accumulation=2,
        checkpoints={"every": 10, "keep": 2},
        questions=question,
    )
    for backend in ("unsloth", "hf"):
        yield f"whole-{backend}", (backend, ["long.yaml"])
    # asking in between must change nothing of what is learned
    asked = [
        "samples.every=5",
        "samples.max_new_tokens=6",
        'samples.ask=[{prompt: "What follows red?"}, {prompt: Blue}]',
    ]
    for backend in ("unsloth", "hf"):
        yield f"sampled-{backend}", (backend, ["long.yaml", *settings(*asked)])
    # the rate rises until what was learned is lost
    workshop.recipe(
        "rising",
        schedule__learning_rate=0.3,
        schedule__steps=200,
        schedule__warmup=200,
        precision="fp32",
        checkpoints={"every": 3, "keep": 1},
        guard={"spike": 1.5},
    )
    yield "spiked", ("hf", ["rising.yaml"])
    ended = ["data.eval=eval.jsonl", "schedule.steps=6", "evaluation.every=2", "export=[merged]"]
    yield "exported", ("hf", ["short.yaml", *settings(*ended)])
    for name, family in SHIPPED.items():
        words = [str(ROOT / "recipes" / f"{name}.yaml")]
        yield (
            f"run-{name}",
            ("hf", [*words, *settings(f"model={family}", "schedule.epochs=0.25", "checkpoints.every=0")]),
        )
    workshop.recipe("short", schedule__steps=2)
    yield "long-rows", ("hf", ["short.yaml", *settings("data.train=long.jsonl")])
    yield "pairs", ("hf", ["short.yaml", *settings("data.train=pairs.jsonl", "data.template=plain")])
    yield "all-learned", ("hf", ["short.yaml", *settings("data.train=pairs.jsonl", "responses_only=false")])
    # Debian's Gloo moves no bf16: DDP begins with a broadcast of the weights
    workshop.recipe("two", schedule__steps=6, checkpoints={"every": 3, "keep": 1}, precision="fp32")
    yield "alone", ("hf", ["two.yaml", *settings("schedule.batch=8")])
    for name, (backend, wrong, _, _) in WRONG.items():
        yield name, (backend, ["short.yaml", *settings(*wrong)])
