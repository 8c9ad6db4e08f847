"""Drivers and engines that die: what they leave behind is found and removed, and nobody waits for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strix_finetune.engine import podman_service
from strix_finetune.engine.base import BuildEvent, BuildRequest, StepLog
from strix_finetune.engine.client import SdkEngine
from strix_finetune.engine.select import connect
from strix_finetune.errors import EngineError

if TYPE_CHECKING:
    from tests.engine.conftest import Bench

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def no_file_is_left(podman_bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Services that start in a test keep Podman's temporary files where they can be counted."""
    place = tmp_path / "t"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    yield
    wait_until(lambda: not list(place.glob("strix-podman-*")), "a private folder is left behind")
    assert {found.name for found in place.iterdir()} <= {"buildah-cache"}


DRIVER = """
import os, sys
from strix_finetune.engine.base import RunRequest
from strix_finetune.engine.select import connect
kind, image, label = sys.argv[1:]
engine = connect(kind, os.environ)
print(engine.info.url, flush=True)
request = RunRequest(image, ("sh", "-c", "echo begun; sleep 600"), labels={label: "run"})
engine.run(request, lambda data: os.write(1, data))
"""


def wait_until(true: Callable[[], bool], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_killed_driver_s_container_is_reaped_and_its_service_is_gone(bench: Bench) -> None:
    engine, label = bench.engine, f"io.strix-finetune.reap-{time.time_ns()}"
    kind = engine.info.kind
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, kind, bench.base, label], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    url = driver.stdout.readline().strip()
    assert driver.stdout.readline() == "begun\n"
    assert len(engine.api.containers(filters={"label": label})) == 1
    assert engine.reap(label) == 0, "its driver still lives"
    driver.kill()
    driver.wait()
    driver.stdout.close()
    assert len(engine.api.containers(filters={"label": label})) == 1
    assert engine.reap(label) == 1
    assert engine.api.containers(all=True, filters={"label": label}) == []
    assert engine.reap(label) == 0
    if kind == "podman":
        socket = Path(url.removeprefix("unix://"))
        wait_until(lambda: not socket.parent.exists(), "the private service's folder is still there")
        wait_until(lambda: not _services(socket.parent), "the private service still runs")


def _services(folder: Path) -> list[int]:
    """Processes whose command line names the private folder, or that run a service with it as their home."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if (
                str(folder).encode() in path.read_bytes()
                or str(folder).encode() in (path.parent / "environ").read_bytes()
            ):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_a_build_of_a_killed_driver_ends_too(podman_bench: Bench) -> None:
    from tests.engine.conftest import working_containers

    seconds = f"5{time.time_ns() % 10**6:06d}"
    code = DRIVER.partition("request =")[0] + (
        "sys.path.insert(0, label)\n"
        "from tests.engine.conftest import context\n"
        "from strix_finetune.engine.base import BuildRequest\n"
        f"request = BuildRequest(context(f'FROM {{image}}\\nRUN echo begun; sleep {seconds}\\n'), {{}})\n"
        "engine.build(request, lambda event: print('event', flush=True))\n"
    )
    before = set(working_containers(podman_bench.engine))
    driver = subprocess.Popen(
        [sys.executable, "-c", code, "podman", podman_bench.base, str(ROOT)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    wait_until(lambda: _sleeps(seconds), "the step does not begin")
    driver.kill()
    driver.wait()
    driver.stdout.close()
    wait_until(lambda: not _sleeps(seconds), "the step outlives its driver")
    wait_until(
        lambda: set(working_containers(podman_bench.engine)) <= before, "what it was building is still in the store"
    )


def _sleeps(seconds: str) -> bool:
    wanted = b"sleep\0" + seconds.encode() + b"\0"
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == wanted:
                return True
        except OSError:
            continue
    return False


def test_a_private_service_ends_with_close_and_leaves_no_folder() -> None:
    service = podman_service.start(os.environ)
    folder = Path(service.url.removeprefix("unix://")).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert _services(folder)
    service.stop()
    assert not folder.exists()
    assert not _services(folder)
    service.stop()  # twice is no error


def test_a_podman_that_does_not_start_says_why(tmp_path: Path) -> None:
    program = tmp_path / "podman"
    program.write_text("#!/bin/sh\necho 'Error: no space left on device' >&2\nexit 125\n")
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    begin = time.monotonic()
    with pytest.raises(EngineError, match="Podman does not start: Error: no space left on device"):
        connect("podman", env)
    assert time.monotonic() - begin < 5


def told(folder: Path, variable: str) -> bool:
    """Whether a service of the folder has that in its environment."""
    for pid in _services(folder):
        with suppress(OSError):
            if variable.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                return True
    return False


def test_the_user_s_own_containers_conf_is_respected(tmp_path: Path) -> None:
    own = tmp_path / "own.conf"
    own.write_text("[engine]\n")
    service = podman_service.start({**os.environ, "CONTAINERS_CONF": str(own)})
    try:
        folder = Path(service.url.removeprefix("unix://")).parent
        assert not (folder / "containers.conf").exists()
        # a process that is starting another program shows an empty environment for a moment
        wait_until(lambda: told(folder, f"CONTAINERS_CONF={own}"), "the service was told of another file", 5)
    finally:
        service.stop()


def test_an_engine_that_dies_in_the_middle_of_a_build_is_told_in_one_sentence(podman_bench: Bench) -> None:
    from tests.engine.conftest import context

    engine = connect("podman", os.environ)
    assert isinstance(engine, SdkEngine)
    folder = Path(engine.info.url.removeprefix("unix://")).parent
    if not folder.name.startswith("strix-podman-"):
        pytest.fail("a Podman service of the host is running; stop it, this test kills the one that it uses")

    def kill(event: BuildEvent) -> None:
        for pid in _services(folder) if isinstance(event, StepLog) else ():
            with suppress(OSError):  # what is passing by may be gone
                if Path(f"/proc/{pid}/comm").read_text().strip() == "podman":
                    os.kill(pid, signal.SIGKILL)

    request = BuildRequest(context(f"FROM {podman_bench.base}\nRUN echo begun {time.time()}; sleep 2\n"), {})
    try:
        with pytest.raises(EngineError) as caught:
            engine.build(request, kill)
    finally:
        engine.close()
    assert "\n" not in str(caught.value)
    assert "went away" in str(caught.value) or "without a result" in str(caught.value)
