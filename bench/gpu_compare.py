"""Our trainer beside TRL's on the same rows, one process a side: what bench.gpu_speed compare starts.

TRL: SFTTrainer, SDPA attention, gradient checkpointing, and every hyperparameter as ours. A step's rows are the same in
each step, so that both sides see the same losses whatever order they draw rows in.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu_trainer import ALPHA, LEARNING_RATE, RANK, Ours, Size, Stage, clean, following, quiet_environment, recipe

SIZES = (Size(2, 4, 2048), Size(8, 1, 4096))
TINY = (Size(2, 2, 32), Size(4, 1, 64))
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
GIB = 2**30


def full(size: Size) -> list[list[int]]:
    """Return the rows of one step, each as long as can be."""
    chance = random.Random(size.length)
    return [[chance.randrange(4, 400) for _ in range(size.length)] for _ in range(size.batch * size.accumulation)]


def mixed(longest: int, count: int) -> list[list[int]]:
    """Return rows of many lengths, as instructions have: half of them below a seventh of the longest."""
    chance = random.Random(7)
    lengths = [min(longest, max(8, int(chance.lognormvariate(0, 1) * longest / 7))) for _ in range(count)]
    return [[chance.randrange(4, 400) for _ in range(length)] for length in lengths]


def plan(*, tiny: bool) -> list[tuple[str, Size, list[list[int]], bool]]:
    """Return what both sides train: a name, a size, rows, and whether ours packs them besides."""
    sizes = TINY if tiny else SIZES
    found = [(size.name, size, full(size), False) for size in sizes]
    longest, count = sizes[0].length, 16 if tiny else 64
    return [*found, ("mixed", Size(8, 1, longest), mixed(longest, count), True)]


def steps_of(size: Size, rows: Sequence[Sequence[int]]) -> int:
    """Return the steps of one pass over rows."""
    return -(-len(rows) // (size.batch * size.accumulation))


def report(**facts: Any) -> None:
    """Write one result, for the process that started this one."""
    print("RESULT " + json.dumps(facts), flush=True)


def stages(size: Size, rows: Sequence[Sequence[int]], warm: int) -> list[Stage]:
    """Return one stage: steps that warm up, then at least three that count, or all rows once."""
    once = steps_of(size, rows)
    return [Stage("all", warm + max(4 if size.accumulation > 1 else 3, once if once > 1 else 0), warm)]


def told(side: str, name: str, stage: Stage, losses: list[float], frozen: int, tokens: int) -> None:
    """Report one run. `tokens` of one step on average, what fills rows up left out."""
    seconds = sum(stage.seconds) / len(stage.seconds) if name.startswith("mixed") else stage.median
    report(
        side=side,
        name=name,
        seconds=round(seconds, 4),
        peak=stage.peak,
        above=stage.peak - frozen,
        first=losses[0],
        last=losses[-1],
        steps=len(losses),
        tokens_per_s=round(tokens / seconds),
    )


def ours(out: Path, model: Path, bits: int, backend: str, *, tiny: bool) -> None:
    """Train all of it on our side."""
    import torch

    jobs = plan(tiny=tiny)
    adapter = "lora" if bits == 16 else "qlora"
    most = max((size for _, size, _, _ in jobs), key=lambda size: size.length)
    trainer = Ours(out, recipe(out, model, most, steps=1, adapter=adapter, backend=backend))
    clean()
    frozen = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    for name, size, rows, packs in jobs:
        for packing in (False, True) if packs else (False,):
            tokens = sum(map(len, rows))
            if packing:
                from strix_train.tokens import pack

                # as many tokens in a pass as the longest rows of a step without packing would have
                size = Size(max(1, size.batch // 2), 1, size.length)
                bins = len(pack([len(row) for row in rows], size.length))
                once = -(-bins // size.batch)
                some = [Stage("packed", 1 + 2 * once, 1)]
            else:
                once = steps_of(size, rows)
                some = stages(size, rows, 2 if size.accumulation > 1 else 1)
            path = recipe(out, model, size, steps=1, adapter=adapter, backend=backend, packing=packing)
            found = trainer.run(path, some, rows)
            label = f"{name} packed" if packing else name
            told("ours", label, some[0], [float(row["loss"]) for row in found], frozen, tokens // once)


def trl(out: Path, model: Path, bits: int, *, tiny: bool) -> None:
    """Train all of it with TRL's trainer."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
    from trl import SFTConfig, SFTTrainer

    gpu = torch.cuda.is_available()
    if not gpu:
        from strix_train.backends import logprobs

        logprobs.install(gpu=False)  # TRL's own kernel needs Triton
    more: dict[str, Any] = {"device_map": {"": 0}} if gpu else {}
    if bits == 4:
        more["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16,
            bnb_4bit_use_double_quant=True,
        )
    tokenizer = AutoTokenizer.from_pretrained(model)
    held = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16, attn_implementation="sdpa", **more)
    clean()
    frozen = torch.cuda.memory_allocated() if gpu else 0
    for name, size, rows, _ in plan(tiny=tiny):
        some = stages(size, rows, 2 if size.accumulation > 1 else 1)
        torch.manual_seed(3)
        args = SFTConfig(
            output_dir=str(out / "trl"),
            per_device_train_batch_size=size.batch,
            gradient_accumulation_steps=size.accumulation,
            max_steps=some[0].steps,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            warmup_steps=0,
            optim="adamw_torch_fused",
            adam_beta1=0.9,
            adam_beta2=0.999,
            adam_epsilon=1e-8,
            weight_decay=0.0,
            max_grad_norm=1.0,
            bf16=True,
            use_cpu=not gpu,
            seed=3,
            data_seed=3,
            max_length=size.length,
            packing=False,
            gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": False},
            logging_steps=1,
            disable_tqdm=True,
            report_to="none",
            save_strategy="no",
        )
        trainer = SFTTrainer(
            model=held,
            processing_class=tokenizer,
            train_dataset=Dataset.from_dict({"input_ids": rows}),
            args=args,
            peft_config=LoraConfig(
                r=RANK,
                lora_alpha=ALPHA,
                lora_dropout=0.0,
                bias="none",
                target_modules=TARGETS,
                task_type="CAUSAL_LM",
            ),
            callbacks=[following(some, gpu)],
        )
        trainer.train()
        losses = [float(row["loss"]) for row in trainer.state.log_history if "loss" in row]
        told("trl", name, some[0], losses, frozen, sum(map(len, rows)) // steps_of(size, rows))
        held = trainer.model.unload()
        del trainer
        clean()


def table(rows: list[dict[str, Any]], bits: int) -> list[str]:
    """Return the lines that say who took how long, and how much."""
    sides: dict[str, dict[str, dict[str, Any]]] = {"trl": {}, "ours": {}}
    for row in rows:
        sides[row["side"]][row["name"]] = row
    found = [f"{'bits':<5}{'rows':<16}{'side':<6}{'s':>8}{'GiB':>8}{'above':>8}{'tokens/s':>10}   losses"]
    found += [
        f"{bits:<5}{row['name']:<16}{row['side']:<6}{row['seconds']:>8.3f}{row['peak'] / GIB:>8.2f}"
        f"{row['above'] / GIB:>8.2f}{row['tokens_per_s']:>10}   "
        f"{row['first']:.4f} -> {row['last']:.4f} in {row['steps']}"
        for row in rows
    ]
    for name, mine in sides["ours"].items():
        theirs = sides["trl"].get(name.removesuffix(" packed"))
        if theirs:
            ratios = {
                "faster": mine["tokens_per_s"] / max(1, theirs["tokens_per_s"]),
                "less memory": theirs["peak"] / max(1, mine["peak"]),
                "less above the weights": theirs["above"] / max(1, mine["above"]),
            }
            found.append(f"{bits:<5}{name:<16}" + ", ".join(f"{value:.2f} x {what}" for what, value in ratios.items()))
    return found


def main(words: Sequence[str]) -> int:
    """Run one side: SIDE OUT MODEL BITS BACKEND tiny|real."""
    side, out, model, bits, backend, size = words
    with quiet_environment():
        if side == "trl":
            trl(Path(out), Path(model), int(bits), tiny=size == "tiny")
        else:
            ours(Path(out), Path(model), int(bits), backend, tiny=size == "tiny")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
