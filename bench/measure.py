"""Wall times of whole processes and a table of them; memory of this one."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable


def run(command: Sequence[str | Path], *, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> float:
    """Run a command to its end and return its wall time in seconds; what it printed is shown when it fails."""
    began = time.perf_counter()
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-4000:]}")
    return seconds


def memory(name: str) -> int:
    """Return the bytes of a line of /proc/self/status: VmRSS, VmHWM, RssAnon."""
    found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text("utf-8"), re.M)
    assert found
    return int(found[1]) * 1024


def times(command: Sequence[str | Path], count: int, **options: object) -> list[float]:
    """Run once for the caches, then `count` times."""
    run(command, **options)  # type: ignore[arg-type]
    return [run(command, **options) for _ in range(count)]  # type: ignore[arg-type]


def table(rows: Sequence[tuple[str, Sequence[float]]]) -> None:
    """Print the median, least and most seconds of each row."""
    width = max(len(name) for name, _ in rows)
    print(f"{'':{width}}  median     min     max   runs")
    for name, found in rows:
        middle = statistics.median(found)
        print(f"{name:{width}}  {middle:5.3f} s {min(found):5.3f} s {max(found):5.3f} s  {len(found):4}")
