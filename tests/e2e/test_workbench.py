"""The layer workbench as docs/workbench.md shows it: built by name, for this machine alone, and its notebooks run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.e2e.stranger import TRAINING, Stranger

TARGET = "gfx1151"
IMAGE = f"localhost/strix-finetune/workbench:{TARGET}"
PORT = "18899"
QUICK = (
    *("--tiny", "llama", "--set", "backend=hf", "--set", "schedule.steps=2", "--set", "schedule.warmup=0"),
    *("--set", "questions.max_new_tokens=4", "2-fine-tune"),
)


@pytest.fixture(scope="module")
def built(stranger: Stranger) -> str:
    """The image, as the build that asks for it by its name says."""
    stranger.run("make", "image", f"OVERRIDE={TRAINING}")
    return stranger.strix("build", "--engine", "docker", "--target", TARGET, "--override", TRAINING, "workbench")


def test_it_is_built_and_tested_when_it_is_named(built: str, stranger: Stranger) -> None:
    said = stranger.strix("plan", "--engine", "docker", "--override", TRAINING, "workbench")
    assert "workbench: up to date" in said
    assert stranger.run("docker", "image", "inspect", "--format", "{{.Config.Entrypoint}} {{.Config.Cmd}}", IMAGE) in (
        "[] [workbench]\n",
        "<nil> [workbench]\n",
    )


@pytest.fixture
def server(built: str, stranger: Stranger, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """A started workbench, the address that it printed, and the folder that it was started in."""
    words = ("workbench", "--engine", "docker", "--target", TARGET, "--port", PORT, "--examples", "notebooks")
    process = subprocess.Popen(
        [str(stranger.clone / ".venv/bin/strix-finetune"), *words],
        cwd=tmp_path,
        env=stranger.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # as a shell in a terminal has it; a test runner in the background may ignore it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert process.stdout
        yield process, address(process.stdout), tmp_path
    finally:
        process.kill()
        process.wait()


def address(lines: IO[str]) -> str:
    said = ""
    for line in lines:
        said += line
        if found := re.search(r"http://\S+", line):
            return found[0]
    raise AssertionError(f"no address was printed:\n{said}")


def status(url: str, **headers: str) -> int:
    """The HTTP status; the port may be open before the server is."""
    for _ in range(50):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"nothing answers at {url}")


def listeners(port: int) -> set[str]:
    """The addresses on which this machine listens at a port, as /proc writes them."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            place, number = words[1].split(":")
            if words[3] == "0A" and int(number, 16) == port:
                found.add(place)
    return found


def test_it_answers_this_machine_alone_and_by_its_token(
    server: tuple[subprocess.Popen[str], str, Path], stranger: Stranger
) -> None:
    process, url, folder = server
    assert re.fullmatch(rf"http://127\.0\.0\.1:{PORT}/lab\?token=[0-9a-f]{{32,}}", url)
    assert status(url) == 200
    token = url.partition("token=")[2]
    contents = f"http://127.0.0.1:{PORT}/api/contents"
    assert status(contents) == 403
    assert status(contents, Authorization="token " + "0" * len(token)) == 403
    assert status(contents, Authorization=f"token {token}") == 200
    # by iptables alone, where the engine has no program that listens
    assert listeners(int(PORT)) <= {"0100007F"}
    label = ("docker", "ps", "--format", "{{.Ports}}", "--filter", f"ancestor={IMAGE}")
    assert stranger.run(*label).strip() == f"127.0.0.1:{PORT}->{PORT}/tcp"
    copied = sorted(path.name for path in (folder / "notebooks").iterdir())
    assert copied == ["1-look-at-your-data.ipynb", "2-fine-tune.ipynb", "3-take-it-with-you.ipynb"]
    assert {path.stat().st_uid for path in (folder / "notebooks").iterdir()} == {os.getuid()}
    # the token is in no command line and in no variable of the container
    ids = stranger.run("docker", "ps", "--quiet", "--filter", f"ancestor={IMAGE}").split()
    assert token not in stranger.run("docker", "inspect", *ids)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) in (0, 130)
    assert stranger.run("docker", "ps", "--all", "--quiet", "--filter", f"ancestor={IMAGE}").strip() == ""


def run_inside(stranger: Stranger, folder: Path, models: Path, *words: str) -> str:
    """Run notebooks in the image as somebody whom it does not know."""
    folder.chmod(0o777)
    tests = Path(__file__).resolve().parents[1]
    mounts = ("-v", f"{tests}:/tests:ro", "-v", f"{folder}:{folder}", "-v", f"{models}:{models}")
    inside = ("--user", "4321:4322", "--workdir", str(folder), "--network", "none", "--env", f"STRIX_MODELS={models}")
    said = stranger.run(
        *("docker", "run", "--rm", *mounts, *inside, IMAGE, "python", "/tests/e2e/notebooks_inside.py", *words)
    )
    assert {path.stat().st_uid for path in (folder / "runs").rglob("*")} == {4321}
    return said


def test_the_notebook_that_trains_runs_in_the_image(built: str, stranger: Stranger, tmp_path: Path) -> None:
    """With a tiny model; the first notebook is a smoke test of the layer, and the long test has the demo's model."""
    models = tmp_path / "models"
    models.mkdir()
    models.chmod(0o777)
    said = run_inside(stranger, tmp_path, models, *QUICK)
    assert "step 2/2" in said
    assert "right: 0 of 8 before, 0 after" in said
    assert "[text/plain, image/png]" in said
    assert (tmp_path / "runs/notebook/adapter/adapter_model.safetensors").is_file()


@pytest.mark.long
def test_all_notebooks_teach_the_demo_model_and_export_it(built: str, stranger: Stranger, tmp_path: Path) -> None:
    """pytest tests/e2e/test_workbench.py -m long"""
    stranger.strix("fetch", "demo")
    names = ("1-look-at-your-data", "2-fine-tune", "3-take-it-with-you")
    said = run_inside(stranger, tmp_path, stranger.home / ".cache/strix-finetune/models", *names)
    assert "right: 0 of 8 before, 8 after" in said
    assert "Hesper Lindqvale" in said
    for made in ("adapter/adapter_model.safetensors", "merged/model.safetensors", "gguf-q8_0/Modelfile"):
        assert made in said
