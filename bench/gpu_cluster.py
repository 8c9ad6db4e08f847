"""What several GPUs of one machine make of a model, in one command: python -m bench.gpu_cluster PART --out FOLDER.

    all     both parts and the table
    fast    one process alone, then DDP, FSDP2 and DeepSpeed's ZeRO-3 over whatever joins the GPUs
    slow    DDP and FSDP2 over TCP on the loopback, with 16 passes a step, as two machines would do it
    table   the table of what was measured

The ranks of a part are started once and train one recipe after the other, since a start costs more than a run. Weights
are random and nothing is fetched; --tiny shows on a CPU, with gloo, that the script works. Efficiency is the tokens a
second of all ranks by those of as many processes alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench import random_model

SHAPE = "unsloth/Meta-Llama-3.1-8B"
# Rows of a pass, passes of a step, tokens of a row.
FAST, SLOW, TINY = (2, 4, 2048), (2, 16, 2048), (2, 2, 64)
SOCKETS = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
}


@dataclass(frozen=True)
class Run:
    """One run. `alone`: process 0 trains while the others wait. `passes` of a step, 0: those of the part."""

    name: str
    strategy: dict[str, Any]
    alone: bool = False


_SEAT = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
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
}


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
    path = folder / f"{_short(run.name)}.yaml"
    path.write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")
    return path


def _short(name: str) -> str:
    return "-".join(name.replace(",", "").split())


def worker(part: str, folder: Path, *, tiny: bool, steps: int) -> int:
    """Be one rank of a part: train its recipes one after the other, and write down what each gave."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    size = TINY if tiny else (SLOW if part == "slow" else FAST)
    port = int(os.environ["MASTER_PORT"])
    # the agent's own store is gone with its prefix after the first run: each run meets at a port of its own
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    failed = 0
    for number, run in enumerate(PARTS[part], start=1):
        if run.name == "deepspeed zero-3" and not _importable("deepspeed"):
            continue
        os.environ["MASTER_PORT"] = str(port + number)
        began = time.monotonic()
        code, memory = 0, 0
        if not run.alone or rank == 0:
            # alone, nothing may say that there are others: accelerate would meet them
            kept = {name: os.environ.pop(name) for name in _SEAT if name in os.environ} if run.alone else {}
            try:
                code, memory = one(folder, run, size, steps)
            except Exception:  # noqa: BLE001 - the next run may be well
                traceback.print_exc()
                code = 1
            os.environ |= kept
        else:
            _warm()
        failed |= code
        facts = {"code": code, "memory": memory, "seconds": time.monotonic() - began}
        (folder / f"{_short(run.name)}.rank{rank}.json").write_text(json.dumps(facts))
        _wait(folder, run, world)
    return failed


def one(folder: Path, run: Run, size: tuple[int, int, int], steps: int) -> tuple[int, int]:
    """Train once in this process. Returns the exit code and peak bytes."""
    import torch

    from strix_train.__main__ import main as train

    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.reset_peak_memory_stats()
    work = folder / _short(run.name)
    if os.environ.get("RANK", "0") == "0":
        shutil.rmtree(work, ignore_errors=True)
    code = train(["run", str(recipe(folder, run, size, steps)), "--run-dir", str(work)])
    memory = int(torch.cuda.max_memory_allocated()) if gpu else 0
    gc.collect()
    if gpu:
        torch.cuda.empty_cache()
    return code, memory


def _warm() -> None:
    """Import what training needs, while another rank trains alone."""
    import datasets
    import peft
    import torch.distributed.fsdp
    import transformers.trainer

    assert all((datasets, peft, torch.distributed.fsdp, transformers.trainer))


def _importable(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def _wait(folder: Path, run: Run, world: int) -> None:
    """Wait until every rank has written down what this run gave; a minute at most for those that failed."""
    limit = time.monotonic() + (600 if run.alone else 90)
    names = [folder / f"{_short(run.name)}.rank{rank}.json" for rank in range(world)]
    while time.monotonic() < limit and not all(name.is_file() for name in names):
        time.sleep(0.2)


def start(part: str, folder: Path, options: argparse.Namespace) -> int:
    """Start the ranks of a part by torchrun; returns its exit code."""
    for path in folder.glob("*.rank*.json"):
        if path.name.partition(".")[0] in {_short(run.name) for run in PARTS[part]}:
            path.unlink()
    env = (
        random_model.environment()
        | {"STRIX_DIST_TIMEOUT": "120", "PYTHONUNBUFFERED": "1"}
        | (SOCKETS if part == "slow" else {})
    )
    if part == "slow":
        # what cluster check would measure there: the loopback, told as a link between machines
        env |= {"STRIX_LINK_GBIT": "25", "STRIX_LINK_US": "60"}
    if options.tiny:
        env |= {"OMP_NUM_THREADS": "1"}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    words = ["worker", "--part", part, "--out", str(options.out), *(["--tiny"] if options.tiny else [])]
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={options.ranks}"]
    command += [f"--master-port={port}", "--max-restarts=0", "-m", "bench.gpu_cluster", *words]
    command += ["--steps", str(options.steps)]
    try:
        return subprocess.run(command, env=env, timeout=options.limit, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"{part}: not done after {options.limit:.0f} s")
        return 1


def prepare(folder: Path, *, tiny: bool) -> None:
    """Make the model, in a process of its own, and the text."""
    random_model.made(random_model.config(SHAPE, tiny=tiny), folder / "model")
    words = random_model.WORDS
    texts = [{"text": " ".join(words[(row * at + at) % len(words)] for at in range(2600))} for row in range(1, 401)]
    random_model.write(folder / "text.jsonl", texts[:40] if tiny else texts)


def table(folder: Path, ranks: int) -> str:
    """Return what all runs gave, efficiency by the one process alone."""
    lines = [
        f"{'':<20}{'s/step':>8}{'tokens/s':>10}{'of ideal':>9}{'GiB a rank':>16}{'loss':>18}{'equal':>7}{'run':>7}"
    ]
    single = 0.0
    for run in (each for runs in PARTS.values() for each in runs):
        facts: list[dict[str, Any]] = []
        for rank in range(1 if run.alone else ranks):
            path = folder / f"{_short(run.name)}.rank{rank}.json"
            facts.append(json.loads(path.read_text()) if path.is_file() else {"code": None})
        metrics = folder / _short(run.name) / "metrics.jsonl"
        if any(each["code"] is None for each in facts) or not metrics.is_file():
            lines.append(f"{run.name:<20} not run")
            continue
        rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
        later = rows[2:] or rows
        seconds = statistics.median(row["seconds"] for row in later)
        pace = statistics.median(row["tokens"] for row in later) / seconds
        single = pace if run.alone else single
        ideal = f"{pace / (single * (1 if run.alone else ranks)):.3f}" if single else "?"
        memory = " ".join(f"{each['memory'] / 2**30:.1f}" for each in facts)
        report = folder / _short(run.name) / "report.json"
        same = json.loads(report.read_text())["same_weights"] if report.is_file() else None
        equal = "-" if same is None else "yes" if same else "NO"
        state = "ok" if not any(each["code"] for each in facts) else f"exit {facts[0]['code']}"
        loss = f"{rows[0]['loss']:.4f} > {rows[-1]['loss']:.4f}"
        lines.append(
            f"{run.name:<20}{seconds:>8.3f}{pace:>10.0f}{ideal:>9}{memory:>16}{loss:>18}{equal:>7}{state:>7}"
            f"  {max(each['seconds'] for each in facts):.0f} s in all"
        )
    text = "\n".join(lines)
    (folder / "table.txt").write_text(text + "\n", encoding="utf-8")
    return text


def main(words: Sequence[str]) -> int:
    """Run a part, or all."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_cluster", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["all", *PARTS, "table", "worker"])
    parser.add_argument("--part", choices=[*PARTS], help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--ranks", type=int, default=2, help="processes, one a GPU")
    parser.add_argument("--steps", type=int, default=8, help="of each run; 'slow' takes three fewer")
    parser.add_argument("--limit", type=float, default=300, help="seconds of a part at most")
    parser.add_argument("--tiny", action="store_true", help="a model of no size, for a CPU")
    options = parser.parse_args(words)
    folder: Path = options.out.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if options.what == "worker":
        steps = options.steps - (3 if options.part == "slow" else 0)
        return worker(options.part, folder, tiny=options.tiny, steps=max(3, steps))
    code = 0
    if options.what != "table":
        prepare(folder, tiny=options.tiny)
        for part in PARTS if options.what == "all" else (options.what,):
            code |= start(part, folder, options)
    print(table(folder, options.ranks))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
