"""Ways to run `train` as users do, in processes of its own, and to read what a run left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    """A finished process."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Fork(Done):
    """A finished child. `alive`: whether the signal found it alive; `seconds` that it lived."""

    seconds: float
    alive: bool


@dataclass
class Forks:
    """Runs `train` in forked children of one process that has the libraries imported."""

    process: subprocess.Popen[str]

    def train(self, *words: object, kill: Mapping[str, Any] | None = None) -> Fork:
        """Run `train`. `kill`: a signal, and after which seconds or at which step of a metrics file."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps({"words": [str(word) for word in words], "kill": kill}) + "\n")
        self.process.stdin.flush()
        done = Fork(**json.loads(self.process.stdout.readline()))
        assert "Traceback" not in done.out + done.err, done.out + done.err
        return done

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


@dataclass
class Workshop:
    """A folder with models and data, and ways to run `train` there."""

    path: Path
    env: dict[str, str] = field(default_factory=dict)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of the processes: this checkout, one thread, nothing of the caller's caches."""
        # in the container the launcher names a folder for our cache, which would outlive the tests
        ours = ("HF_", "STRIX_", "XDG_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return kept | {
            "PYTHONPATH": str(ROOT / "src"),
            "OMP_NUM_THREADS": "1",
            "STRIX_MODELS": str(self.path / "models"),
            "HOME": str(self.path / "home"),
            "PYTHONUNBUFFERED": "1",
            **self.env,
            **(more or {}),
        }

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start `train` and return the process. `program`: another way to call Python; `env`: more variables."""
        env = self.environment(options.pop("env", None))
        program = options.pop("program", [sys.executable])
        return subprocess.Popen(
            [*program, "-m", "strix_train", *words],
            cwd=options.pop("cwd", self.path),
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def train(self, *words: str, **options: Any) -> Done:
        """Run `train` to its end."""
        process = self.start(*words, **options)
        out, err = process.communicate(timeout=400)
        assert "Traceback" not in out + err, out + err
        return Done(process.returncode, out, err)

    def several(self, commands: Sequence[Sequence[object]]) -> list[Done]:
        """Run several `train` commands in one process, since the libraries take seconds to load."""
        code = (
            "import contextlib, io, json, sys\nfrom strix_train.__main__ import main\n"
            "def one(words):\n"
            "    out, err = io.StringIO(), io.StringIO()\n"
            "    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err): code = main(words)\n"
            "    return [code, out.getvalue(), err.getvalue()]\n"
            f"found = [one(words) for words in {[list(map(str, words)) for words in commands]!r}]\n"
            "print('\\n' + json.dumps(found))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.path,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [Done(*each) for each in json.loads(done.stdout.splitlines()[-1])]

    def forks(self, backend: str) -> Forks:
        """Return a process that runs `train` in children of its own; see forks.py."""
        program = [sys.executable, str(Path(__file__).with_name("forks.py")), backend]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return Forks(subprocess.Popen(program, cwd=self.path, env=self.environment(), text=True, **pipes))

    def recipe(self, name: str, **keys: Any) -> Path:
        """Write a recipe for a tiny model; keys with dots go into sections."""
        value: dict[str, Any] = {
            "model": "llama",
            "data": {"train": str(self.path / "rows.jsonl")},
            "adapter": {"r": 8, "alpha": 16},
            "schedule": {
                "steps": 12,
                "batch": 4,
                "accumulation": 1,
                "learning_rate": 5e-3,
                "scheduler": "constant",
                "warmup": 0,
                "max_length": 128,
                "seed": 3,
            },
            "checkpoints": {"every": 0},
        }
        for key, item in keys.items():
            *sections, last = key.split("__")
            inner = value
            for section in sections:
                inner = inner.setdefault(section, {})
            inner[last] = item
        path = self.path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(value, sort_keys=False))
        return path


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def report(run: Path) -> dict[str, Any]:
    """Return a run's report.json."""
    found: dict[str, Any] = json.loads((run / "report.json").read_text())
    return found
