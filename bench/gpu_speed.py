"""Speed and memory of training on one GPU, beside TRL: python -m bench.gpu_speed profile|compare --out FOLDER.

profile    where time and memory of a step go, at two sizes, and what each variant makes of it
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench import gpu_compare, gpu_profile, random_model
from bench.gpu_compare import GIB, SIZES, TINY
from bench.gpu_trainer import Ours, Stage, quiet_environment, recipe

SHAPE = "unsloth/Meta-Llama-3.1-8B"


def model(out: Path, *, tiny: bool) -> Path:
    """Return the folder of the model with random weights; it is made in a process of its own."""
    return random_model.made(random_model.config(SHAPE, tiny=tiny), out / ("tiny" if tiny else "model"))


# What may be tried inside a running trainer: a name, and what is entered before its steps.
Variants = dict[str, Callable[[], Any]]


@contextmanager
def _no_flash() -> Iterator[None]:
    """Let SDPA take cuDNN's attention where it would take flash attention."""
    import torch

    torch.backends.cuda.enable_flash_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


@contextmanager
def _lean(**wanted: Any) -> Iterator[None]:
    """Change the lean layers that train now: attention's `kernel`, `offload`, what is kept, how much at a time."""
    import gc

    from strix_train.lean import columns, keep, layer
    from strix_train.lean.attend import Choice
    from strix_train.lean.install import Lean

    [lean] = [each for each in gc.get_objects() if isinstance(each, Lean)]
    before = (lean.kernels, lean.stash.on, layer.ROWS, layer.TOKENS, columns.WIDE)
    named = wanted.get("kernel")
    lean.kernels, lean.stash.on = Choice(named, named) if named else before[0], wanted.get("offload", before[1])
    layer.ROWS, layer.TOKENS = wanted.get("rows", before[2]), wanted.get("tokens", before[3])
    columns.WIDE = wanted.get("wide", before[4])
    choose, most = keep.choose, wanted.get("most", max(keep.Keep))
    keep.choose = lambda *parts, **more: min(choose(*parts, **more), most)
    sizes = f"{layer.ROWS} {layer.TOKENS} {columns.WIDE}"
    room = lean.stash.arena.budget.left / GIB
    away = f"offload {lean.stash.on}, {lean.hurry:.0f} bytes in time, {room:.1f} GiB of the host to take"
    print(f"lean: {lean.kernels.whole}, {lean.steps.__name__}, {away}, {sizes}", flush=True)
    try:
        yield
    finally:
        keep.choose = choose
        lean.kernels, lean.stash.on, layer.ROWS, layer.TOKENS, columns.WIDE = before


VARIANTS: dict[str, Variants] = {
    "unsloth": {"cudnn": _no_flash},
    "hf": {
        "any": partial(_lean, kernel="any"),
        "flash": partial(_lean, kernel="flash"),
        "cudnn": partial(_lean, kernel="cudnn"),
        "tokens2048": partial(_lean, tokens=2048),
        "tokens8192": partial(_lean, tokens=8192),
        "rows4096": partial(_lean, rows=4096),
        "rows16384": partial(_lean, rows=16384),
        "wide2048": partial(_lean, wide=2048),
        "wide8192": partial(_lean, wide=8192),
        "stay": partial(_lean, offload=False),
        "heads again": partial(_lean, most=1),
    },
}


def profile(options: argparse.Namespace) -> None:
    """Profile our own trainer at both sizes."""
    sizes = TINY if options.tiny else SIZES
    folder = model(options.out, tiny=options.tiny)
    quick = options.tiny
    first = recipe(options.out, folder, max(sizes, key=lambda size: size.length), steps=1, **_how(options))
    ours = Ours(options.out, first)
    summary = []
    for size in sizes:
        told: list[str] = []
        stages = [
            Stage("as it is", 3 if quick else 5, 1 if quick else 2),
            Stage("profiled", 1, 0, partial(gpu_profile.time_of, told)),
            Stage("recorded", 1, 0, partial(gpu_profile.memory_of, told)),
            *(
                Stage(name, 2 if quick else 3, 1, around)
                for name, around in VARIANTS[options.backend].items()
                if options.variants is None or name in options.variants
            ),
        ]
        found = ours.run(recipe(options.out, folder, size, steps=1, **_how(options)), stages, gpu_compare.full(size))
        losses = [float(row["loss"]) for row in found]
        print(f"== {size.name}, losses {', '.join(f'{loss:.4f}' for loss in losses)}")
        print("\n".join(told), flush=True)
        summary += [
            f"{size.name:<12} {stage.name:<12} {stage.median:>8.3f} s {stage.peak / GIB:>8.2f} GiB  {stage.error}"
            for stage in stages
        ]
    print("\n".join(summary))


def compare(options: argparse.Namespace) -> None:
    """Run TRL and ours, each in a process of its own, and print the table."""
    folder = model(options.out, tiny=options.tiny)
    kept = options.out / f"compare-{options.bits}-{options.backend}.jsonl"
    rows: list[dict[str, Any]] = []
    for side in options.sides:
        words = [side, str(options.out), str(folder), str(options.bits), options.backend]
        command = [sys.executable, "-m", "bench.gpu_compare", *words, "tiny" if options.tiny else "real"]
        began = time.monotonic()
        with subprocess.Popen(command, env=random_model.environment(), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("RESULT "):
                    rows.append(json.loads(line.removeprefix("RESULT ")))
                print(line, end="", flush=True)
        print(f"{side}: exit {process.returncode} after {time.monotonic() - began:.0f} s", flush=True)
    kept.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print("\n".join(gpu_compare.table(rows, options.bits)))


def _how(options: argparse.Namespace) -> dict[str, Any]:
    return {"adapter": options.adapter, "backend": options.backend}


def main(words: Sequence[str]) -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_speed", description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["profile", "compare"])
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--backend", default="hf", choices=["unsloth", "hf"])
    parser.add_argument("--adapter", default="lora", choices=["lora", "qlora"])
    parser.add_argument("--bits", type=int, default=16, choices=[16, 4], help="of the frozen weights, for compare")
    parser.add_argument("--sides", nargs="*", default=["trl", "ours"], help="for compare")
    parser.add_argument("--variants", nargs="*")
    parser.add_argument("--tiny", action="store_true", help="a model of no size, for a CPU")
    options = parser.parse_args(words)
    options.out = options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with quiet_environment():
        {"profile": profile, "compare": compare}[options.part](options)
    print(f"{time.monotonic() - began:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
