"""A child ends with its block, with `stop_all`, and with the process that started it, whatever ends that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from strix_finetune import children, leftovers

CONTAINED = [pytest.param(False, id="plain")] + ([pytest.param(True, id="contained")] if os.geteuid() == 0 else [])
SCRIPT = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *a: (print("cleaned up", flush=True), sys.exit(3)))
print("started", os.environ["MARK"], flush=True)
signal.pause()
"""


def running(mark: str) -> list[int]:
    """Processes of this host that carry the mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"MARK={mark}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def gone(mark: str) -> bool:
    for _ in range(100):
        if not running(mark):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("contained", CONTAINED)
def test_output_and_exit_code(contained: bool) -> None:
    command = [sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"]
    with children.child(command, env=os.environ, contained=contained) as process:
        assert process.stdout is not None
        lines = sorted(process.stdout)
    assert lines == ["err\n", "out\n"]
    assert process.returncode == 7


@pytest.mark.parametrize("contained", CONTAINED)
def test_a_block_that_is_left_ends_its_child(contained: bool, tmp_path: Path) -> None:
    mark, codes = str(tmp_path), []

    def leave() -> None:
        env = {**os.environ, "MARK": mark}
        with children.child([sys.executable, "-c", SCRIPT], env=env, contained=contained) as process:
            codes.append(process)
            assert process.stdout is not None
            assert process.stdout.readline().startswith("started")
            assert running(mark)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    assert gone(mark)
    assert codes[0].returncode != 0


@pytest.mark.parametrize("contained", CONTAINED)
def test_stop_all_wakes_a_thread_that_waits(contained: bool, tmp_path: Path) -> None:
    mark, codes, ready = str(tmp_path), [], threading.Event()

    def work() -> None:
        env = {**os.environ, "MARK": mark}
        with children.child([sys.executable, "-c", SCRIPT], env=env, contained=contained) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("started"):
                    ready.set()
        codes.append(process.returncode)

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(10)
    children.stop_all()
    thread.join(10)
    assert not thread.is_alive()
    assert codes[0] != 0
    assert gone(mark)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("contained", CONTAINED)
def test_a_killed_driver_takes_its_child_along(contained: bool, number: signal.Signals, tmp_path: Path) -> None:
    driver = (
        "import os, sys\nfrom strix_finetune import children\n"
        f"with children.child([sys.executable, '-c', sys.argv[1]], env=os.environ, contained={contained}) as p:\n"
        "    print(p.stdout.readline(), flush=True)\n    p.wait()\n"
    )
    mark = str(tmp_path)
    env = {**os.environ, "MARK": mark}
    command = [sys.executable, "-c", driver, SCRIPT]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("started")
        process.send_signal(number)
        assert process.wait(10) == -number
    assert gone(mark)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes mount namespaces")
def test_what_a_contained_child_mounts_goes_with_it(tmp_path: Path) -> None:
    script = f"mount -t tmpfs strix {tmp_path} && touch {tmp_path}/inside && echo mounted && sleep 60"

    def leave() -> None:
        with children.child(["sh", "-c", script], env=os.environ, contained=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "mounted\n"
            assert str(tmp_path) not in Path("/proc/mounts").read_text()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_does_not_wait_for_its_threads_leaves_nothing(tmp_path: Path) -> None:
    driver = """
import os, sys, threading
from pathlib import Path
from strix_finetune import children, leftovers
ready = threading.Event()
def work():
    folder = Path(sys.argv[2])
    with leftovers.temporary(folder, "half") as part, leftovers.temporary(folder, "d", "work") as d:
        part.write_text("half")
        d.mkdir()
        with children.child([sys.executable, "-c", sys.argv[1]], env=os.environ, contained=os.geteuid() == 0) as p:
            p.stdout.readline()
            ready.set()
            p.wait()
threading.Thread(target=work, daemon=True).start()
assert ready.wait(10) and len(os.listdir(sys.argv[2])) == 2
raise KeyboardInterrupt
"""
    mark = str(tmp_path)
    command = [sys.executable, "-c", driver, SCRIPT, str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, "MARK": mark}, capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert "AssertionError" not in done.stderr
    assert gone(mark)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    leftovers.write(tmp_path / "file", "ä\n")
    leftovers.write(tmp_path / "secret", b"x", 0o600)
    assert (tmp_path / "file").read_bytes() == "ä\n".encode()
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UnicodeEncodeError):
        leftovers.write(tmp_path / "file", "\ud800")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        leftovers.write(tmp_path / "folder", b"x")
    assert (tmp_path / "file").read_bytes() == "ä\n".encode()
    assert {path.name for path in tmp_path.iterdir()} == {"file", "secret", "folder"}
