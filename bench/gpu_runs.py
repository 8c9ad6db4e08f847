"""Everything that needs a GPU, in one command a part: python -m bench.gpu_runs PART --out FOLDER.

    estimate   4 shapes x 4 adapters x 2 backends, several batches and lengths, each beside its estimate
    families   gpt-oss, Gemma 3 and Qwen 3 and 3.5 shapes, LoRA and 4 bits
    grpo       a reward that differs from answer to answer, and what became of it
    curves     loss curves of both backends on one picture

Weights are random and nothing is fetched, so that a machine without a network will do; on a CPU, --tiny shows that the
script works. A part that is started again goes on: cells that have a result are not run again. --minutes ends it before
a machine's time is up.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench import random_model
from strix_train.benchmark import cells
from strix_train.benchmark.cells import Cell, Result, Size
from strix_train.estimate import machines
from strix_train.estimate.memory import GIB, Backend

SHAPES = ("unsloth/Llama-3.2-1B", "Qwen/Qwen3-4B", "unsloth/gemma-3-4b-it", "unsloth/Meta-Llama-3.1-8B")
FAMILIES = (
    ("unsloth/gpt-oss-20b", 6),
    ("unsloth/gemma-3-12b-it", 24),
    ("Qwen/Qwen3-14B", 20),
    ("Qwen/Qwen3.5-4B", 32),
    ("unsloth/gemma-4-E4B-it", 42),
)
# Rows of a pass, passes of a step, tokens of a row.
SIZES = ((2, 4, 2048), (4, 1, 1024), (8, 1, 512), (1, 2, 8192), (8, 1, 4096))
TINY = ((2, 1, 64), (1, 2, 128))


@dataclass(frozen=True)
class Wanted:
    """One cell: the shape by its hub id, cut to so many layers (None: all), how it is trained, and how large."""

    shape: str
    layers: int | None
    adapter: str
    backend: Backend
    size: tuple[int, int, int]

    @property
    def name(self) -> str:
        """A name that is the same in every part."""
        short = self.shape.rpartition("/")[2]
        return f"{short}-{self.adapter}-{self.backend}-{'x'.join(map(str, self.size))}"


def grid(sizes: Sequence[tuple[int, int, int]]) -> Iterator[Wanted]:
    """Yield the cells of `estimate`; of each shape one after the other, so that one model at a time is on the disk."""
    for number, shape in enumerate(SHAPES):
        for at, adapter in enumerate(cells.ADAPTERS):
            for which, backend in enumerate(cells.BACKENDS):
                if adapter == "full" and "8B" in shape:
                    # in 16 bits, 8 billion weights with their optimizer are 60 GiB
                    continue
                yield Wanted(shape, None, adapter, backend, sizes[(number + at + 2 * which) % len(sizes)])


def families(sizes: Sequence[tuple[int, int, int]]) -> Iterator[Wanted]:
    """Yield the cells of `families`."""
    for shape, layers in FAMILIES:
        for adapter in ("lora", "qlora"):
            for backend in cells.BACKENDS:
                yield Wanted(shape, layers, adapter, backend, sizes[0])


class Part:
    """A part in its folder: models that are made when they are needed, results that are kept."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = (options.out / name).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.results = self.folder / "results.jsonl"
        self.began = time.monotonic()
        self.model: tuple[str, Path] | None = None

    def done(self) -> dict[str, dict[str, Any]]:
        """Return the results so far, by name."""
        if not self.results.is_file():
            return {}
        return {(row := json.loads(line))["name"]: row for line in self.results.read_text().splitlines()}

    def keep(self, row: dict[str, Any]) -> None:
        """Add a result."""
        with self.results.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")

    def late(self) -> bool:
        """Whether the time is up."""
        return bool(self.options.minutes) and time.monotonic() - self.began > 60 * float(self.options.minutes)

    def made(self, shape: str, layers: int | None, *, spoken: bool = False) -> Path:
        """Return the folder of a model; the one before it is removed. It is made in a process of its own."""
        path = self.folder / "models" / f"{shape.rpartition('/')[2]}-{layers or 'all'}"
        if self.model and self.model[1] != path:
            shutil.rmtree(self.model[1], ignore_errors=True)
        random_model.made(random_model.config(shape, layers=layers, tiny=self.options.tiny, spoken=spoken), path)
        self.model = (shape, path)
        return path


def measure(part: Part, wanted: Sequence[Wanted]) -> None:
    """Run cells, each in a process of its own, and print the table."""
    done = part.done()
    machine = machines.here()
    os.environ.update(random_model.environment())
    for number, each in enumerate(wanted, start=1):
        if each.name in done:
            continue
        if part.late():
            print(f"time is up: {len(wanted) - number + 1} of {len(wanted)} cells are left; start it again to go on")
            break
        work = part.folder / "cells" / each.name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        batch, accumulation, length = each.size
        size = Size(batch, accumulation, length, part.options.steps)
        cell = Cell(str(part.made(each.shape, each.layers)), each.adapter, each.backend)
        cells.prepare(work, size)
        found = cells.run(work, cell, size, machine, settings=(), limit=part.options.limit, anyway=True)
        part.keep({"name": each.name, "device": machine.name, "layers": each.layers, **found.as_json()})
        print(f"{number} of {len(wanted)}: {line(each.name, found)}", flush=True)
    table(part)


def line(name: str, found: Result) -> str:
    """Return one row of the table."""
    if found.state != "ok":
        return f"{name:<52} {found.state}: {found.reason[:120]}"
    error = found.estimate / found.memory - 1 if found.memory else 0.0
    pace = found.estimated_seconds / found.seconds - 1 if found.seconds and found.estimated_seconds else 0.0
    return (
        f"{name:<52}{found.estimate / GIB:>8.2f} GiB{found.memory / GIB:>8.2f} GiB{error:>+8.1%}"
        f"{found.estimated_seconds:>8.2f} s{found.seconds:>8.2f} s{pace:>+8.1%}"
    )


def table(part: Part) -> None:
    """Print and write what all cells gave, with the median errors."""
    rows = part.done().values()
    results = {row["name"]: Result(**{key: row[key] for key in Result.__slots__}) for row in rows}
    text = [f"{'cell':<52}{'estimate':>12}{'measured':>12}{'':>8}{'estimate':>10}{'measured':>10}"]
    text += [line(name, found) for name, found in results.items()]
    good = [found for found in results.values() if found.state == "ok" and found.estimate]
    if good:
        memory = statistics.median(abs(found.estimate / found.memory - 1) for found in good)
        text.append(f"median error of the memory {memory:.1%} over {len(good)} runs")
    timed = [found for found in good if found.estimated_seconds]
    if timed:
        pace = statistics.median(abs(found.estimated_seconds / found.seconds - 1) for found in timed)
        text.append(f"median error of the time {pace:.1%} over {len(timed)} runs")
    (part.folder / "table.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


def _train(part: Part, name: str, recipe: dict[str, Any]) -> list[dict[str, Any]]:
    """Train by a recipe and return the lines of its metrics."""
    path = part.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    work = part.folder / name
    shutil.rmtree(work, ignore_errors=True)
    words = [sys.executable, "-m", "strix_train", "run", str(path), "--run-dir", str(work)]
    done = subprocess.run(words, env=random_model.environment(), timeout=part.options.limit)
    if done.returncode:
        raise SystemExit(f"{name} ended with {done.returncode}")
    for folder in ("adapter", "model"):
        shutil.rmtree(work / folder, ignore_errors=True)
    return [json.loads(each) for each in (work / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def _schedule(part: Part, **keys: Any) -> dict[str, Any]:
    return {"steps": part.options.steps, "scheduler": "constant", "warmup": 0, "seed": 3} | keys


def grpo(part: Part) -> None:
    """Train on a reward that a random model's answers earn differently, on both backends."""
    model = part.made(SHAPES[0], None, spoken=True)
    share = "sum(letter in 'aeiou' for letter in answer) / max(1, len(answer))"
    letters = f"def vowels(prompt, answer, row):\n    return {share}\n"
    (part.folder / "worth.py").write_text(letters)
    prompts = [{"prompt": f"What follows {word}?", "answer": word} for word in random_model.WORDS]
    data = random_model.write(part.folder / "prompts.jsonl", prompts)
    for backend in cells.BACKENDS:
        recipe = {
            "model": str(model),
            "data": str(data),
            "method": {
                "kind": "grpo",
                "rewards": [{"kind": "python", "file": "worth.py", "name": "vowels"}],
                "generations": 8,
                "max_new_tokens": 16 if part.options.tiny else 64,
            },
            "adapter": {"r": 16, "alpha": 64},
            "backend": backend,
            "schedule": _schedule(part, batch=16, accumulation=1, learning_rate=1e-3, max_length=256),
            "checkpoints": {"every": 0},
        }
        rows = _train(part, f"grpo-{backend}", recipe)
        rewards = [float(row["reward"]) for row in rows]
        spread = [float(row.get("reward_std", 0.0)) for row in rows]
        part.keep({"name": f"grpo-{backend}", "reward": rewards, "reward_std": spread})
        third = max(1, len(rewards) // 3)
        first, last = statistics.mean(rewards[:third]), statistics.mean(rewards[-third:])
        seconds = statistics.median(row["seconds"] for row in rows)
        print(
            f"grpo, {backend}: reward {first:.3f} -> {last:.3f}, spread {statistics.mean(spread):.3f}, {seconds:.2f} s"
        )


def curves(part: Part) -> None:
    """Train the same rows on both backends, and draw both losses into one picture."""
    model = part.made(SHAPES[0], None)
    data = random_model.write(part.folder / "rows.jsonl", random_model.rows(64, 24 if part.options.tiny else 300))
    found: dict[str, list[float]] = {}
    for backend in cells.BACKENDS:
        recipe = {
            "model": str(model),
            "data": str(data),
            "backend": backend,
            "schedule": _schedule(part, batch=4, accumulation=2, learning_rate=2e-4, max_length=1024),
            "checkpoints": {"every": 0},
        }
        found[backend] = [float(row["loss"]) for row in _train(part, f"curve-{backend}", recipe)]
    apart = max(abs(a - b) for a, b in zip(found["unsloth"], found["hf"], strict=True))
    part.keep({"name": "curves", "apart": apart, **found})
    print(f"losses are {apart:.4f} apart at most; ends {found['unsloth'][-1]:.4f} and {found['hf'][-1]:.4f}")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for (label, losses), style in zip(found.items(), ("-", "--"), strict=True):
        axes.plot(range(1, len(losses) + 1), losses, style, label=label)
    axes.set(xlabel="optimizer step", ylabel="training loss", title=f"{SHAPES[0]}, random weights, LoRA")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(part.folder / "curves.png", format="png")


def main(words: Sequence[str]) -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_runs", description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["estimate", "families", "grpo", "curves"])
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--steps", type=int, default=9, help="of each run")
    parser.add_argument("--minutes", type=float, default=0, help="begin no cell after so many minutes")
    parser.add_argument("--limit", type=float, default=600, help="seconds of a run at most")
    parser.add_argument("--only", default="", help="cells whose names hold one of these, with commas between them")
    parser.add_argument("--tiny", action="store_true", help="models of no size, for a CPU")
    options = parser.parse_args(words)
    part = Part(options.part, options)
    sizes = TINY if options.tiny else SIZES
    if options.part in ("estimate", "families"):
        wanted = grid(sizes) if options.part == "estimate" else families(sizes)
        measure(part, [each for each in wanted if any(word in each.name for word in options.only.split(","))])
    else:
        {"grpo": grpo, "curves": curves}[options.part](part)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
