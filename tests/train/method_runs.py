"""Runs of every method on tiny models: what they learn from, and the words of their commands, by name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import tiny_models as tiny
from workshop import Workshop

STEPS = 12
Words = list[str]
# Adapters and the backends that train them here; those of bitsandbytes where it is installed, as in the image.
ADAPTERS: dict[str, tuple[str, ...]] = {"rslora": ("unsloth", "hf"), "dora": ("hf",), "full": ("unsloth", "hf")}
if find_spec("bitsandbytes"):
    ADAPTERS |= {"qlora": ("unsloth", "hf"), "lora8bit": ("hf",)}


def preferences(count: int = 24) -> list[dict[str, Any]]:
    """Return pairs: the right answer in one form, a wrong one in another."""
    made = []
    for index, row in enumerate(tiny.rows(count)):
        wrong = tiny.WORDS[(index + 4) % len(tiny.WORDS)]
        said = {"role": "assistant", "content": f"It is {wrong}, I think."}
        made.append({"prompt": row["messages"][:1], "chosen": row["messages"][1:], "rejected": [said]})
    return made


def marked() -> list[dict[str, Any]]:
    """Return single answers marked good or bad."""
    pairs = preferences()
    return [
        {"prompt": pair["prompt"], "completion": pair["chosen" if good else "rejected"], "label": good}
        for index, pair in enumerate(pairs)
        for good in [index % 2 == 0]
    ]


def prompts() -> list[dict[str, Any]]:
    """Return questions with the word that an answer is rewarded for."""
    return [
        {"prompt": row["messages"][:1], "answer": tiny.WORDS[(index + 1) % len(tiny.WORDS)]}
        for index, row in enumerate(tiny.rows(16))
    ]


def prose() -> str:
    """Return plain text of several paragraphs."""
    lines = [f"After {a} comes {b}. " * 3 for a, b in zip(tiny.WORDS, tiny.WORDS[1:], strict=False)]
    return "\n\n".join(lines) + "\n"


def write(workshop: Workshop) -> None:
    """Write the data files and the recipes."""
    folder = workshop.path
    tiny.write_rows(folder / "preferences.jsonl", preferences())
    tiny.write_rows(folder / "marked.jsonl", marked())
    tiny.write_rows(folder / "prompts.jsonl", prompts())
    (folder / "prose.txt").write_text(prose())
    files = {
        "cpt": "prose.txt",
        "dpo": "preferences.jsonl",
        "orpo": "preferences.jsonl",
        "kto": "marked.jsonl",
        "reward": "preferences.jsonl",
        "sft": "rows.jsonl",
    }
    for method, file in files.items():
        workshop.recipe(
            f"of-{method}",
            data={"train": file, **({"eval": file} if method == "cpt" else {})},
            method=method,
            precision="fp32",
            schedule__steps=STEPS,
            **({} if method == "cpt" else {"evaluation": {"split": 4}}),
        )

    (folder / "worth.py").write_text(
        "def vowels(prompt, answer, row):\n"
        "    assert row['answer'] and ' ' in prompt\n"
        "    return sum(letter in 'aeiou' for letter in answer) / max(1, len(answer))\n"
    )
    workshop.recipe(
        "of-grpo",
        data="prompts.jsonl",
        method={
            "kind": "grpo",
            "rewards": [{"kind": "python", "file": "worth.py", "name": "vowels"}, {"kind": "match", "weight": 0.5}],
            "generations": 16,
            "max_new_tokens": 8,
        },
        adapter={"r": 16, "alpha": 64},
        precision="fp32",
        schedule={
            "steps": 20,
            "batch": 32,
            "accumulation": 1,
            "learning_rate": 1e-2,
            "scheduler": "constant",
            "warmup": 0,
            "max_length": 128,
            "seed": 3,
        },
    )


def runs() -> Iterator[tuple[str, str, Words]]:
    """Yield (name, backend, words)."""
    yield "reward-hf", "hf", ["of-reward.yaml"]
    for backend in ("unsloth", "hf"):
        yield f"grpo-{backend}", backend, ["of-grpo.yaml"]
    for name, backends in ADAPTERS.items():
        for backend in backends:
            short = ["of-sft.yaml", "--set", f"adapter={name}", "--set", "precision=bf16"]
            yield f"{name}-{backend}", backend, short
    yield "dpo-full-hf", "hf", ["of-dpo.yaml", "--set", "adapter=full", "--set", "schedule.learning_rate=1e-3"]
    for backend in ("unsloth", "hf"):
        for method in ("cpt", "dpo", "orpo", "kto"):
            yield f"{method}-{backend}", backend, [f"of-{method}.yaml"]
        # all rows in one step, so that packing must not change the loss
        whole = ["of-sft.yaml", "--set", "evaluation.split=null", "--set", "schedule.steps=1"]
        yield f"plain-{backend}", backend, [*whole, "--set", "schedule.batch=24"]
        yield f"packed-{backend}", backend, [*whole, "--set", "schedule.batch=4", "--set", "data.packing=true"]
