"""What the tests of several processes share: a crowd of ranks, and how far two results are apart."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from workshop import Workshop


class Crowd:
    """Runs `train` as several ranks in children of one process; see crowds.py."""

    def __init__(self, workshop: Workshop, backend: str) -> None:
        program = [sys.executable, str(Path(__file__).with_name("crowds.py")), backend]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        env = workshop.environment({"STRIX_DIST_TIMEOUT": "60"})
        self.process = subprocess.Popen(program, cwd=workshop.path, env=env, text=True, **pipes)

    def train(
        self, ranks: int, *words: object, each: dict[int, list[str]] | None = None, **more: Any
    ) -> dict[str, Any]:
        """Run `train`. `each`: more words of a rank; `env`: variables of all; `kill`: see crowds.py."""
        env = more.pop("env", {})
        wishes = [
            {"words": [*map(str, words), *(each or {}).get(rank, [])], "env": env.get(rank, env.get("all", {}))}
            for rank in range(ranks)
        ]
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps({"ranks": wishes, **more}) + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert not any("Traceback" in rank["out"] + rank["err"] for rank in found["ranks"]), found
        found["codes"] = [rank["code"] for rank in found["ranks"]]
        found["said"] = [rank["err"].strip() for rank in found["ranks"]]
        return found


def weights(run: Path) -> dict[str, Any]:
    """Return the tensors of a result, in 32 bits."""
    from safetensors.torch import load_file

    [folder] = [path for path in (run / "adapter", run / "model") if path.is_dir()]
    return {name: tensor.float() for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def apart(one: Path, other: Path) -> float:
    """Return how far the weights of two runs are apart, as a share of the largest."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert first
    largest = max(float(tensor.abs().max()) for tensor in first.values())
    return max(float((first[name] - second[name]).abs().max()) for name in first) / largest
