"""`train check` on a hundred thousand conversations, and `train --help`, beside what a careful script does instead.

The peer needs the datasets library: name a Python that has it in STRIX_TRAIN_PYTHON, else it is left out.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.measure import PYTHON, table, times

ROWS = 100_000
COUNT = 5
WORDS = [
    "north",
    "stone",
    "river",
    "seven",
    "glass",
    "copper",
    "harbour",
    "bridge",
    "tower",
    "market",
    "ferry",
    "marsh",
]

_PEER = """
import sys
from datasets import load_dataset
how = {"cache_dir": sys.argv[2], "download_mode": "force_redownload"}
rows = load_dataset("json", data_files=sys.argv[1], split="train", **how)
if sys.argv[3] == "validate":
    seen = set()
    for number, row in enumerate(rows, start=1):
        due = "user"
        turns = row["messages"]
        assert turns and turns[-1]["role"] == "assistant", number
        for index, turn in enumerate(turns):
            assert isinstance(turn["content"], str) and turn["content"].strip(), number
            if index == 0 and turn["role"] == "system":
                continue
            assert turn["role"] == due, number
            due = "user" if due == "assistant" else "assistant"
        seen.add(str(turns))
    print(len(rows), len(seen))
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        path = _write(root)
        print(f"{ROWS:,} conversations of three turns, {path.stat().st_size / 1e6:.0f} MB")
        ours: list[str | Path] = [PYTHON, "-m", "strix_train"]
        rows = [
            ("train check", times([*ours, "check", root / "recipe.yaml"], COUNT)),
            ("train --help", times([*ours, "--help"], COUNT)),
        ]
        peer = _peer()
        if peer:
            command: list[str | Path] = [peer, "-c", _PEER, path, root / "cache"]
            rows.append(("datasets.load_dataset alone", times([*command, "load"], 3)))
            rows.append(("datasets.load_dataset, then every row checked", times([*command, "validate"], 3)))
        else:
            print("no peer: STRIX_TRAIN_PYTHON names no Python with the datasets library")
        table(rows)


def _write(root: Path) -> Path:
    chance = random.Random(1)

    def text(count: int) -> str:
        return " ".join(chance.choices(WORDS, k=count))

    path = root / "rows.jsonl"
    with path.open("w", encoding="utf-8") as stream:
        for index in range(ROWS):
            turns = [("system", "You are brief."), ("user", f"{text(30)} {index}?"), ("assistant", text(60))]
            messages = [{"role": role, "content": content} for role, content in turns]
            stream.write(json.dumps({"messages": messages}) + "\n")
    (root / "recipe.yaml").write_text("model: owner/name\ndata: rows.jsonl\nschedule: {epochs: 1}\n")
    return path


def _peer() -> str:
    """Return a Python that has the datasets library, or ''."""
    for python in (os.environ.get("STRIX_TRAIN_PYTHON", ""), sys.executable):
        if python and not subprocess.run([python, "-c", "import datasets"], capture_output=True).returncode:
            return python
    return ""
