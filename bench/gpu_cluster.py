"""What several GPUs of one machine make of a model, in one command: python -m bench.gpu_cluster PART --out FOLDER.

    all     fast, slow and the table
    fast    one process alone, then DDP, FSDP2 and DeepSpeed's ZeRO-3 over whatever joins the GPUs
    slow    DDP and FSDP2 over TCP on the loopback, with 16 passes a step, as two machines would do it
    one     on one GPU: one process alone, then the same with DDP and FSDP2 as a group of one (see bench/lone.py), which
            tells what of their cost is not sending
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
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import lone, random_model
from bench.gpu_cluster_parts import ALONE, FAST, PARTS, SEVERAL, SLOW, TINY, Run, recipe, short

SHAPE = "unsloth/Meta-Llama-3.1-8B"
SOCKETS = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
}


_SEAT = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


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
        (folder / f"{short(run.name)}.rank{rank}.json").write_text(json.dumps(facts))
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
    work = folder / short(run.name)
    if os.environ.get("RANK", "0") == "0":
        shutil.rmtree(work, ignore_errors=True)
    with lone.group_of_one() if run.lone else nullcontext() as seen:
        code = train(["run", str(recipe(folder, run, size, steps)), "--run-dir", str(work)])
    if seen is not None and code == 0 and seen != {run.strategy["kind"]}:
        raise RuntimeError(f"{run.name} trained with strategy {', '.join(seen) or 'none'}")
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
    names = [folder / f"{short(run.name)}.rank{rank}.json" for rank in range(world)]
    while time.monotonic() < limit and not all(name.is_file() for name in names):
        time.sleep(0.2)


def start(part: str, folder: Path, options: argparse.Namespace) -> int:
    """Start the ranks of a part by torchrun; returns its exit code."""
    for path in folder.glob("*.rank*.json"):
        if path.name.partition(".")[0] in {short(run.name) for run in PARTS[part]}:
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
    ranks = options.ranks if part in SEVERAL else 1
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
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


def table(folder: Path, ranks: int, parts: Sequence[str]) -> str:
    """Return what the runs of some parts gave, held against the one process alone."""
    told = (f"{'s/step':>8}", f"{'tokens/s':>10}", f"{'of ideal':>9}", f"{'ms more':>9}", f"{'GiB a rank':>16}")
    lines = [f"{'':<20}{''.join(told)}{'GiB more':>9}{'loss':>18}{'equal':>7}{'run':>7}"]
    single: Row | None = None
    for run in {each.name: each for part in parts for each in PARTS[part]}.values():
        found = _row(folder, run, run.ranks(ranks))
        if found is None:
            lines.append(f"{run.name:<20} not run")
            continue
        single = found if run == ALONE else single
        ideal = f"{found.pace / (single.pace * run.ranks(ranks)):.3f}" if single else "?"
        # a step of as many passes only can be compared
        alike = single is not None and run != ALONE and run not in PARTS["slow"]
        more = f"{1000 * (found.seconds - single.seconds):+.1f}" if single and alike else "-"
        room = f"{found.memory[0] - single.memory[0]:+.2f}" if single and alike else "-"
        memory = " ".join(f"{each:.1f}" for each in found.memory)
        lines.append(
            f"{run.name:<20}{found.seconds:>8.3f}{found.pace:>10.0f}{ideal:>9}{more:>9}{memory:>16}{room:>9}"
            f"{found.loss:>18}{found.equal:>7}{found.state:>7}  {found.whole:.0f} s in all"
        )
    text = "\n".join(lines)
    (folder / "table.txt").write_text(text + "\n", encoding="utf-8")
    return text


@dataclass(frozen=True)
class Row:
    """What a run gave. `seconds` and `pace` (tokens a second): of a step; `memory`: GiB of each rank."""

    seconds: float
    pace: float
    memory: list[float]
    loss: str
    equal: str
    state: str
    whole: float


def _row(folder: Path, run: Run, ranks: int) -> Row | None:
    """Return what a run of `ranks` processes gave, None where it did not train."""
    told = [folder / f"{short(run.name)}.rank{rank}.json" for rank in range(ranks)]
    metrics = folder / short(run.name) / "metrics.jsonl"
    if not all(path.is_file() for path in (*told, metrics)):
        return None
    facts: list[dict[str, Any]] = [json.loads(path.read_text()) for path in told]
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    later = rows[2:] or rows
    seconds = statistics.median(row["seconds"] for row in later)
    report = folder / short(run.name) / "report.json"
    same = json.loads(report.read_text())["same_weights"] if report.is_file() and ranks > 1 else None
    return Row(
        seconds,
        statistics.median(row["tokens"] for row in later) / seconds,
        [each["memory"] / 2**30 for each in facts],
        f"{rows[0]['loss']:.4f} > {rows[-1]['loss']:.4f}",
        "-" if same is None else "yes" if same else "NO",
        "ok" if not any(each["code"] for each in facts) else f"exit {facts[0]['code']}",
        max(each["seconds"] for each in facts),
    )


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
    parts = [options.what] if options.what in PARTS else SEVERAL
    if options.what != "table":
        prepare(folder, tiny=options.tiny)
        for part in parts:
            code |= start(part, folder, options)
    print(table(folder, options.ranks, [*PARTS] if options.what == "table" else parts))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
