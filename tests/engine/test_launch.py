"""train, run and shell as commands, on real engines, with a tiny image under the name of one that nobody builds."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strix_finetune.engine.drivers import PID_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.conftest import Bench

# the tests' own: of all targets the one that is least likely to be built where tests run
TARGET = "gfx908"
IMAGE = f"localhost/strix-finetune:{TARGET}"

pytestmark = pytest.mark.engine


@pytest.fixture
def place(bench: Bench, tmp_path: Path) -> Iterator[Path]:
    """A project of a user with an empty home; the tiny image stands for the real one."""
    assert bench.engine.image(IMAGE) is None, f"{IMAGE} is in the store; this test would replace it"
    image = bench.engine.image(bench.base)
    assert image
    bench.engine.tag(image.id, IMAGE)
    (tmp_path / "home").mkdir()
    (tmp_path / "project").mkdir()
    try:
        yield tmp_path
    finally:
        bench.engine.untag(IMAGE)


def environment(place: Path, **more: str) -> dict[str, str]:
    dropped = ("XDG_", "HF_", "STRIX_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return kept | {"HOME": str(place / "home")} | more


def argv(bench: Bench, *words: str) -> list[str]:
    verb, *rest = words
    return [sys.executable, "-m", "strix_finetune", verb, "--engine", bench.engine.info.kind, "-t", TARGET, *rest]


def call(bench: Bench, place: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv(bench, *words),
        cwd=place / "project",
        env=environment(place, **env),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


def containers(bench: Bench, pid: int) -> list[dict[str, str]]:
    found: list[dict[str, str]] = bench.engine.api.containers(all=True, filters={"label": f"{PID_LABEL}={pid}"})
    return found


def gone(bench: Bench, pid: int, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while containers(bench, pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_a_command_runs_here_as_the_caller_and_ends_with_its_code(bench: Bench, place: Path) -> None:
    done = call(bench, place, "run", "--", "sh", "-c", "id -u; echo $PWD; touch made; ls /hub /models /cache; exit 7")
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines()[:2] == [str(os.getuid()), str(place / "project")]
    assert (place / "project/made").stat().st_uid == os.getuid()
    assert (place / "home/.cache/strix-finetune/compiled").is_dir()


def test_nothing_stale_and_no_secret_of_the_shell_gets_in(bench: Bench, place: Path) -> None:
    script = "set; cat $HF_TOKEN_PATH; echo; ls -l $HF_TOKEN_PATH"
    env = {"HSA_OVERRIDE_GFX_VERSION": "11.0.0", "HIP_VISIBLE_DEVICES": "1", "HF_TOKEN": "hf_verysecret"}
    env |= {"OMP_NUM_THREADS": "3"}
    done = call(bench, place, "run", "-e", "OMP_NUM_THREADS", "-e", "A=b c", "--", "sh", "-c", script, **env)
    assert done.returncode == 0, done.stderr
    assert "A='b c'" in done.stdout
    assert "OMP_NUM_THREADS='3'" in done.stdout
    assert "HIP_VISIBLE_DEVICES, HSA_OVERRIDE_GFX_VERSION of this shell are not passed on" in done.stderr
    assert "HSA_OVERRIDE" not in done.stdout
    assert [line for line in done.stdout.splitlines() if "hf_verysecret" in line] == ["hf_verysecret"]
    assert "-rw-------" in done.stdout
    assert not list((place / "home").rglob("*hf-token*"))


def test_a_missing_file_is_a_sentence_and_makes_no_folder(bench: Bench, place: Path) -> None:
    recipe = place / "project/r.yaml"
    recipe.write_text("model: some/model\ndata: rows.jsonl\nschedule: {steps: 1}\n")
    done = call(bench, place, "train", "r.yaml")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {recipe}:2:")
    assert "rows.jsonl does not exist" in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in (place / "project").iterdir()) == ["r.yaml"]


def test_what_print_shows_runs_nothing_and_works_when_typed(bench: Bench, place: Path) -> None:
    done = call(bench, place, "run", "--print", "--", "sh", "-c", "echo from inside; id -u; echo $PWD")
    assert done.returncode == 0, done.stderr
    assert not (place / "home/.cache").exists()
    # folders that a mount needs are made by the line itself, as the launcher would
    made, _, command = done.stdout.partition(" && ")
    assert made.startswith("mkdir -p ")
    assert shlex.split(command)[:3] == [bench.engine.info.kind, "run", "--rm"]
    env = environment(place) | podman_conf(bench, place)
    typed = subprocess.run(["sh", "-c", done.stdout], env=env, capture_output=True, text=True, timeout=120)
    assert typed.stdout.splitlines() == ["from inside", str(os.getuid()), str(place / "project")], typed.stderr


def podman_conf(bench: Bench, place: Path) -> dict[str, str]:
    """What the podman program needs on this host; --init needs a program that not every host has."""
    from strix_finetune.engine.podman_conf import HostFacts, configuration

    text = configuration(HostFacts.read(os.environ), root=os.geteuid() == 0)
    if bench.engine.info.kind != "podman" or not text:
        return {}
    (place / "containers.conf").write_text(text)
    return {"CONTAINERS_CONF": str(place / "containers.conf")}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_command_which_ends_by_itself(bench: Bench, place: Path, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo saved > saved; exit 9' {name}; echo begun; while :; do sleep 0.1; done"
    driver = start(bench, place, script)
    driver.send_signal(number)
    assert driver.wait(timeout=60) == 9
    assert (place / "project/saved").read_text() == "saved\n"
    assert gone(bench, driver.pid, 0)


def test_one_signal_too_many_ends_a_command_that_does_not_listen(bench: Bench, place: Path) -> None:
    driver = start(bench, place, "trap '' INT TERM; echo begun; while :; do sleep 0.1; done")
    for _ in range(3):
        driver.send_signal(signal.SIGINT)
        time.sleep(0.5)
    assert driver.wait(timeout=60) == 130
    assert gone(bench, driver.pid, 0)


def test_the_container_of_a_killed_driver_is_removed_at_once(bench: Bench, place: Path) -> None:
    driver = start(bench, place, "echo begun; sleep 600")
    assert len(containers(bench, driver.pid)) == 1
    driver.kill()
    driver.wait()
    assert gone(bench, driver.pid), "its container outlives it"


def test_the_next_start_removes_what_a_killed_driver_and_its_keeper_left(bench: Bench, place: Path) -> None:
    driver = start(bench, place, "echo begun; sleep 600")
    keepers = [pid for pid in children(driver.pid) if b"HTTPConnection" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(keepers) == 1
    os.kill(keepers[0], signal.SIGKILL)
    driver.kill()
    driver.wait()
    assert len(containers(bench, driver.pid)) == 1
    assert call(bench, place, "run", "--", "date").returncode == 0
    assert gone(bench, driver.pid, 0)


def start(bench: Bench, place: Path, script: str) -> subprocess.Popen[str]:
    """A driver whose command has said `begun`."""
    driver = subprocess.Popen(
        argv(bench, "run", "--", "sh", "-c", script),
        cwd=place / "project",
        env=environment(place),
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert driver.stdout
    assert driver.stdout.readline() == "begun\n"
    return driver


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
