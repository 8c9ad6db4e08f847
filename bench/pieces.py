"""Memory of each process when a model learns whole in pieces (FSDP2): loading it, and writing checkpoint and result.

The peer, in the same run: the same training, where what is written is gathered in memory, and weights get their type
when they are loaded, as trainers commonly do. Counted is what needs memory: pages of mapped files are not, since the
kernel takes them back when there is no room. Needs torch, on the CPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from bench import random_model
from bench.measure import memory
from strix_train.distributed import spool

WORLD, STEPS = 2, 2
# 260 million weights
_CONFIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 2000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
_PORT = 29671
_WAYS = {"mapped": "files are mapped", "usual": "all in memory"}


def main() -> None:
    """Print a table: MiB of the process that writes, and of the other one, at the most of each part."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        random_model.make(_CONFIG, folder / "model", half=True)
        size = (folder / "model/model.safetensors").stat().st_size
        (folder / "rows.jsonl").write_text("".join(json.dumps({"text": f"row {n} " * 20}) + "\n" for n in range(32)))
        (folder / "run.yaml").write_text(yaml.safe_dump(_recipe(folder)))
        print(f"{size / 2**20:.0f} MiB of weights in 16 bits, which learn in 32; {WORLD} processes")
        print("| MiB of memory, not of files | rank | loaded and cut | steps | writing |\n|---|---|---|---|---|")
        for way, words in _WAYS.items():
            for rank, found in enumerate(_crowd(folder, way)):
                print(f"| {words} | {rank} | " + " | ".join(f"{found[part]:.0f}" for part in _PARTS) + " |")


_PARTS = ("load", "steps", "write")


def _recipe(folder: Path) -> dict[str, Any]:
    return {
        "model": str(folder / "model"),
        "data": str(folder / "rows.jsonl"),
        "method": "cpt",
        "backend": "hf",
        "adapter": "full",
        "strategy": {"kind": "fsdp", "keep": "nothing"},
        "precision": "fp32",
        "recompute": "on",
        "schedule": {"steps": STEPS, "batch": 1, "max_length": 64, "learning_rate": 1e-4, "seed": 3},
        "checkpoints": {"every": 1, "keep": 1},
    }


def _crowd(folder: Path, way: str) -> list[dict[str, float]]:
    env = random_model.environment() | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_PORT), "OMP_NUM_THREADS": "1"}
    env |= {"WORLD_SIZE": str(WORLD)}
    words = [sys.executable, "-m", "bench.pieces", way, str(folder)]
    ranks = [
        subprocess.Popen(
            words, env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(WORLD)
    ]
    told = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit("\n".join(told))
    return [json.loads(text.splitlines()[-1]) for text in told]


class Watching(threading.Thread):
    """Keeps the most memory of this process that is no file's, by part; in MiB above what it had at first."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.first = memory("RssAnon")
        self.part, self.most = "load", dict.fromkeys(_PARTS, 0.0)

    def run(self) -> None:
        """Look a hundred times a second."""
        while True:
            now = (memory("RssAnon") - self.first) / 2**20
            self.most[self.part] = max(self.most[self.part], now)
            time.sleep(0.01)


def worker(way: str, folder: Path) -> int:
    """Be one process: train, and print what it took."""
    import torch
    import transformers

    from strix_train.__main__ import main as train
    from strix_train.backends import hf
    from strix_train.methods import loop
    from strix_train.saving import Saver

    _ = torch.ones(1), transformers.AutoModelForCausalLM
    watching = Watching()
    if way == "usual":
        spool.__dict__["kept"] = lambda tensor, place: tensor.cpu()
        load = hf.PlainBackend.load
        hf.PlainBackend.load = lambda self, wish: load(self, replace(wish, stored=False))  # type: ignore[method-assign]
    for owner, name, part in ((loop, "with_saver", "steps"), (Saver, "save", "write"), (loop, "_gathered", "write")):
        _at(owner, name, watching, part)
    watching.start()
    code = train(["run", str(folder / "run.yaml"), "--run-dir", str(folder / way)])
    print(json.dumps(watching.most))
    return code


def _at(owner: Any, name: str, watching: Watching, part: str) -> None:
    """Let a part begin where something is called; after a checkpoint, steps go on."""
    usual = getattr(owner, name)

    def called(*args: Any, **kwargs: Any) -> Any:
        watching.part = part
        try:
            return usual(*args, **kwargs)
        finally:
            if name == "save":
                watching.part = "steps"

    setattr(owner, name, called)


if __name__ == "__main__":
    sys.exit(worker(sys.argv[1], Path(sys.argv[2])))
