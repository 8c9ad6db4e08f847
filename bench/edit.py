"""One line of strix_train changed: rebuild, smoke tests and tags; and what a push then moves."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import PYTHON, ROOT, run, table

COUNT = 3


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, registry(Path(folder)) as (address, store):
        copy = Path(folder, "checkout")
        shutil.copytree(
            ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "build", "runs", "__pycache__", ".*_cache")
        )
        env = {"PYTHONPATH": str(copy / "src")}
        driver = [PYTHON, "-m", "strix_finetune"]
        run([*driver, "build", "--engine", "docker"], cwd=copy, env=env)
        push = [*driver, "push", "--to", f"{address}/strix-bench", "--engine", "docker"]
        run(push, cwd=copy, env=env)
        built, pushed, moved = [], [], []
        for number in range(COUNT):
            module = copy / "src" / "strix_train" / "names.py"
            module.write_text(module.read_text() + f"# {number}\n")
            built.append(run([*driver, "build", "--engine", "docker"], cwd=copy, env=env))
            before = _size(store)
            pushed.append(run(push, cwd=copy, env=env))
            moved.append(_size(store) - before)
        run([*driver, "build", "--engine", "docker"])
        table([("build after one changed line", built), ("push after it", pushed)])
        print(f"bytes that the push added to the registry: {', '.join(f'{size / 1000:.1f} kB' for size in moved)}")


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[tuple[str, Path]]:
    """Debian's docker-registry on a free port of this machine; its address and its store."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = folder / "registry"
    config = folder / "registry.yml"
    config.write_text(
        f"version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {store}\nhttp:\n  addr: 127.0.0.1:{port}\n"
        "log:\n  level: error\n"
    )
    process = subprocess.Popen(
        ["docker-registry", "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if time.monotonic() > deadline:
                raise SystemExit("docker-registry does not answer")
            time.sleep(0.1)
        yield f"localhost:{port}", store
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
