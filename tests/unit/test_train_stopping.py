"""Signals and the console, without any training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from strix_train.console import duration, gigabytes
from strix_train.errors import Interrupted
from strix_train.stopping import Stopper


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_insists(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("strix_train.stopping.SAME_REQUEST", 0.0)
    before = signal.getsignal(number)
    with Stopper(told.append) as stopper:
        with stopper.deferring():
            os.kill(os.getpid(), number)
            assert stopper.requested
            with pytest.raises(Interrupted):
                os.kill(os.getpid(), number)
        assert len(told) == 1
        assert number.name in told[0]
    assert signal.getsignal(number) is before


def test_what_comes_at_once_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm signals the whole group, and each proxy between hands its own on."""
    now = [100.0]
    monkeypatch.setattr("strix_train.stopping.time.monotonic", lambda: now[0])
    told: list[str] = []
    with Stopper(told.append) as stopper, stopper.deferring():
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
            now[0] += 0.2
        assert stopper.requested
        assert len(told) == 1
        now[0] += 0.2
        with pytest.raises(Interrupted, match="SIGINT"):
            os.kill(os.getpid(), signal.SIGINT)


def test_outside_the_steps_a_signal_ends_at_once() -> None:
    with Stopper(lambda text: None), pytest.raises(Interrupted, match="SIGTERM"):
        os.kill(os.getpid(), signal.SIGTERM)


def test_librarys_output_goes_to_the_log_and_ours_does_not(tmp_path: Path) -> None:
    code = f"""
import os, sys
from pathlib import Path
from strix_train.console import Console
console = Console()
console.line("before")
with console.capturing(Path({str(tmp_path / "log.txt")!r})):
    print("from a library")
    print("and to stderr", file=sys.stderr)
    os.write(1, b"from C\\n")
    console.fact("rows", "64")
    console.progress("step 1")
    os.system("echo from a child")
console.line("after")
print("end")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "before\nrows      64\nstep 1\nafter\nend\n"
    assert done.stderr == ""
    log = (tmp_path / "log.txt").read_text()
    for words in ("from a library", "and to stderr", "from C", "from a child", "rows      64"):
        assert words in log


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (61, "1 min 01 s"), (3600, "1 h 00 min"), (7900, "2 h 11 min")]
)
def test_times_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_sizes_read_well() -> None:
    assert gigabytes(3 * 2**29) == "1.50 GiB"
