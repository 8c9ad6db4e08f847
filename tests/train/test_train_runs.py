"""Runs that are stopped, killed, resumed, or go wrong."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tiny
from scenarios import STEPS, WRONG
from workshop import Done, Fork, Forks, Workshop, metrics, report

from strix_train import checkpoints as checkpointing

SAME = ("step", "epoch", "loss", "lr", "grad_norm", "tokens")


def the_same(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return what must be equal to the last bit: all but times and memory."""
    return [tuple(row[key] for key in SAME) for row in rows]


@pytest.fixture
def whole(runs: dict[str, Done], workshop: Workshop) -> dict[str, Path]:
    """The whole run of long.yaml on each backend."""
    for backend in ("unsloth", "hf"):
        assert (runs[f"whole-{backend}"].code, runs[f"whole-{backend}"].err) == (0, "")
    return {backend: workshop.path / f"whole-{backend}" for backend in ("unsloth", "hf")}


def long(backend: str) -> list[str]:
    """Return the words that begin the long run."""
    return ["long.yaml", "--set", f"backend={backend}"]


def disturb(forks: Callable[[str], Forks], backend: str, number: signal.Signals, step: int, run: Path) -> Fork:
    """Begin the same run in another folder and send it a signal at a step."""
    kill = {"signal": number, "step": step, "metrics": str(run / "metrics.jsonl")}
    return forks(backend).train(*long(backend), "--run-dir", run, kill=kill)


def weights(run: Path) -> bytes:
    return (run / "adapter" / "adapter_model.safetensors").read_bytes()


def checkpoints(run: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in (run / "checkpoints").iterdir())


def test_only_the_newest_checkpoints_stay(whole: dict[str, Path]) -> None:
    for run in whole.values():
        assert checkpoints(run) == [30, 40]
        assert json.loads((run / "checkpoints" / "checkpoint-40" / "complete.json").read_text())["step"] == 40


@pytest.mark.parametrize(("backend", "number"), [("unsloth", signal.SIGTERM), ("hf", signal.SIGINT)])
def test_a_stopped_run_goes_on_to_the_same_end(
    workshop: Workshop,
    whole: dict[str, Path],
    forks: Callable[[str], Forks],
    backend: str,
    number: signal.Signals,
) -> None:
    run = workshop.path / f"cut-{backend}-{number.name}"
    done = disturb(forks, backend, number, 13, run)
    assert done.code == 130, done.err
    assert f"{number.name}: stopping after this step, with a checkpoint" in done.out
    assert f"go on with --resume --run-dir {run}" in done.out
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "interrupted"
    stopped = int(status["step"])
    assert 13 <= stopped < STEPS
    assert stopped in checkpoints(run)
    assert not (run / "adapter").exists()

    again = [*long(backend), "--resume", "--run-dir", run.name]
    changed = forks(backend).train(*again, "--set", "schedule.learning_rate=1e-4", "--set", "schedule.seed=4")
    assert changed.code == 2
    assert changed.err == (
        f"train: the recipe is not the one that {run} began with: schedule.learning_rate is 0.0001 and was 0.005, "
        "schedule.seed is 4 and was 3; resume with the same recipe and data, or leave --resume out\n"
    )
    other = forks(backend).train(*again, "--set", "data.train=eval.jsonl")
    assert other.code == 2
    assert "data.train is" in other.err
    assert "the content of data.train differs from what it was" in other.err

    done = forks(backend).train(*again)
    assert done.code == 0, done.err
    assert f"resume    from step {stopped} of {STEPS}" in done.out
    assert the_same(metrics(run)) == the_same(metrics(whole[backend]))
    assert weights(run) == weights(whole[backend])
    assert (run / "answers.jsonl").read_text() == (whole[backend] / "answers.jsonl").read_text()
    found = report(run)
    assert found["resumed_from"] == stopped
    assert found["tokens"] == report(whole[backend])["tokens"]
    assert json.loads((run / "status.json").read_text())["state"] == "done"


def kill_often(
    workshop: Workshop, forks: Callable[[str], Forks], backend: str, whole: Path, kills: int, seed: int
) -> None:
    """Kill runs at random moments, with a checkpoint at every step, until there were `kills`; each must end as `whole`.

    What a kill leaves is never taken for whole, and what follows is the undisturbed run to the last bit.
    """
    chance, killed, number = random.Random(seed), 0, 0
    usual = 6.0
    while killed < kills:
        number += 1
        run = workshop.path / f"killed-{backend}-{seed}-{number}"
        words = [*long(backend), "--run-dir", run, "--set", "checkpoints.every=1"]
        while True:
            resume = ["--resume"] if run.is_dir() and any(run.iterdir()) else []
            moment = {"signal": signal.SIGKILL, "seconds": chance.uniform(0.0, usual)} if killed < kills else None
            done = forks(backend).train(*words, *resume, kill=moment)
            if not done.alive:
                break
            killed += 1
            if (run / "status.json").exists():
                # the signal found the process alive, and the run behind its end
                assert json.loads((run / "status.json").read_text())["state"] == "done"
                break
            for path in (run / "checkpoints").glob("checkpoint-*"):
                sealed = (path / "complete.json").is_file()
                assert not sealed or checkpointing.fault(path, deep=True) == ""
        assert done.code in (0, -signal.SIGKILL), done.err
        usual = max(2.0, done.seconds)
        assert the_same(metrics(run)) == the_same(metrics(whole))
        assert weights(run) == weights(whole)
        assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["checkpoint-39", "checkpoint-40"]


@pytest.mark.parametrize("backend", ["unsloth", "hf"])
def test_a_run_that_is_killed_at_any_moment_ends_the_same(
    workshop: Workshop, whole: dict[str, Path], forks: Callable[[str], Forks], backend: str
) -> None:
    kill_often(workshop, forks, backend, whole[backend], kills=3, seed=5)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["unsloth", "hf"])
def test_twenty_kills(workshop: Workshop, whole: dict[str, Path], forks: Callable[[str], Forks], backend: str) -> None:
    """pytest tests/train -m long; or in the image: make test-train LONG=1"""
    seed = int(os.environ.get("STRIX_SEED") or time.time())
    print(f"STRIX_SEED={seed}")
    kill_often(workshop, forks, backend, whole[backend], kills=20, seed=seed)


def test_a_damaged_checkpoint_is_passed_over_or_refused(
    workshop: Workshop, whole: dict[str, Path], forks: Callable[[str], Forks]
) -> None:
    run = workshop.path / "damaged"
    done = disturb(forks, "hf", signal.SIGKILL, 24, run)
    assert done.code == -signal.SIGKILL
    assert not (run / "status.json").exists()
    assert not (run / "adapter").exists()
    # the newest checkpoint breaks as a full disk or a crash would break it
    size = (run / "checkpoints" / "checkpoint-20" / "optimizer.pt").stat().st_size
    os.truncate(run / "checkpoints" / "checkpoint-20" / "optimizer.pt", 100)
    kept = workshop.path / "damaged-too"
    shutil.copytree(run, kept)
    again = forks("hf").train(*long("hf"), "--resume", "--run-dir", run.name)
    assert again.code == 0, again.err
    assert f"warning   checkpoint-20 is not used: optimizer.pt has 100 bytes instead of {size}" in again.out
    assert f"resume    from step 10 of {STEPS}" in again.out
    assert the_same(metrics(run)) == the_same(metrics(whole["hf"]))
    assert weights(run) == weights(whole["hf"])

    (kept / "checkpoints" / "checkpoint-10" / "optimizer.pt").unlink()
    refused = forks("hf").train(*long("hf"), "--resume", "--run-dir", kept)
    assert refused.code == 2
    assert "checkpoint-10: optimizer.pt is missing); put the file back, or begin another run without" in refused.err


def test_a_run_killed_after_its_last_step_only_ends_what_is_left(
    workshop: Workshop, whole: dict[str, Path], forks: Callable[[str], Forks]
) -> None:
    run = workshop.path / "late"
    shutil.copytree(whole["hf"], run)
    for name in ("status.json", "report.json", "loss.png"):
        (run / name).unlink()
    shutil.rmtree(run / "adapter")
    again = forks("hf").train(*long("hf"), "--resume", "--run-dir", "late")
    assert again.code == 0, again.err
    assert the_same(metrics(run)) == the_same(metrics(whole["hf"]))
    assert weights(run) == weights(whole["hf"])
    assert report(run)["steps_done"] == STEPS


def test_a_run_without_home_as_any_user(workshop: Workshop, tmp_path: Path) -> None:
    """As in a container with --user: no passwd entry, no HOME, nothing to write but the current folder."""
    if os.getuid() or not shutil.which("setpriv"):
        pytest.skip("only root can become another user")
    # The other user may read everything, since this Python may lie in a private folder, and write nothing of ours.
    reading = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    if subprocess.run(["setpriv", *reading, "true"], capture_output=True).returncode:
        # a container grants no such right: its Python is for everyone, and our folders are opened here
        reading = []
        for folder in (workshop.path, *workshop.path.parents[:2], tmp_path):
            folder.chmod(0o755)
        subprocess.run(["chmod", "-R", "a+rX", workshop.path], check=True)
    stranger = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", *reading, sys.executable]
    work, temporary = tmp_path / "work", tmp_path / "tmp"
    for folder in (work, temporary):
        folder.mkdir()
        os.chown(folder, 54321, 54321)
    recipe = workshop.recipe("stranger", backend="auto", schedule__steps=3)
    before = {path: path.stat().st_mtime_ns for path in workshop.path.rglob("*")}
    env = {"HOME": "/nonexistent", "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
    done = workshop.train(str(recipe), program=stranger, cwd=work, env=env)
    assert done.code == 0, done.out + done.err
    (run,) = (work / "runs").iterdir()
    assert run.name.startswith("stranger-20")
    assert {path.stat().st_uid for path in run.rglob("*")} == {54321}
    assert [path.name for path in work.iterdir()] == ["runs"]
    assert [path.name for path in temporary.iterdir()] == ["strix-train-54321"]
    assert {path: path.stat().st_mtime_ns for path in workshop.path.rglob("*")} == before

    refused = workshop.train(str(recipe), program=stranger, cwd=workshop.path, env=env)
    assert refused.code == 2
    assert "cannot be made: Permission denied; start in a folder that you can write, or give --run-dir" in refused.err


@pytest.mark.parametrize("name", sorted(WRONG))
def test_what_goes_wrong_is_one_sentence(runs: dict[str, Done], workshop: Workshop, name: str) -> None:
    _, _, code, sentence = WRONG[name]
    done, run = runs[name], workshop.path / name
    assert done.code == code, done.err
    assert sentence in done.err
    assert len(done.err.splitlines()) == 1
    assert not (run / "adapter").exists()
    if name in ("wrong-fp16", "wrong-length", "wrong-template"):
        assert not run.exists()
        return
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], bool(status["reason"])) == ("failed", True)
    assert "Traceback" in (run / "log.txt").read_text()
    if "nan" in name:
        assert [row["loss"] for row in metrics(run)] == ["nan"]


def test_long_rows_are_cut_or_left_out_and_told(runs: dict[str, Done], workshop: Workshop) -> None:
    done = runs["long-rows"]
    assert done.code == 0, done.err
    place = workshop.path / "short.yaml"
    assert f"warning   1 rows were left out: max_length cuts their whole answer away ({place}:" in done.out
    assert f"warning   1 rows lose a part of their answer to max_length ({place}:" in done.out
    assert report(workshop.path / "long-rows")["rows"] == 7


def test_plain_text_pairs_and_everything_learned(runs: dict[str, Done], workshop: Workshop) -> None:
    assert (runs["pairs"].code, runs["all-learned"].code) == (0, 0)
    found = report(workshop.path / "pairs")["first_batch"]
    assert found["learned_text_of_row_1"].removesuffix("<|im_end|>").strip() in tiny.WORDS
    assert found["learned_text_of_row_1"].endswith("<|im_end|>")
    found = report(workshop.path / "all-learned")["first_batch"]
    assert found["learned_tokens"] == found["tokens"]
    assert found["learned_text_of_row_1"].startswith("<|im_start|>user\n")


def test_two_processes_train_together(runs: dict[str, Done], workshop: Workshop) -> None:
    """torchrun runs the package; every rank sees its own rows, and one folder is written."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=29641"]
    done = workshop.train("two.yaml", "--run-dir", "two", "--set", "backend=hf", program=torchrun)
    assert done.code == 0, done.out + done.err
    assert done.out.count("strix-train ") == 1
    rows = metrics(workshop.path / "two")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert checkpoints(workshop.path / "two") == [6]
    assert runs["alone"].code == 0
    alone = metrics(workshop.path / "alone")
    # two times four rows a step are the eight rows of a single process, and the loss is over all their tokens
    assert [row["tokens"] for row in rows] == [row["tokens"] for row in alone]
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in alone], rel=1e-2)


@pytest.mark.long
def test_two_processes_stop_together_and_go_on(workshop: Workshop, tmp_path: Path) -> None:
    """A signal that reaches both at different steps ends both after the same one, with one checkpoint."""
    recipe = workshop.recipe(
        "pair", schedule__steps=60, checkpoints={"every": 0}, precision="fp32", adapter__dropout=0.1
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=29642"]
    words = [str(recipe), "--set", "backend=hf", "--run-dir"]
    whole = workshop.train(*words, str(tmp_path / "whole"), program=torchrun)
    assert whole.code == 0, whole.err
    run = tmp_path / "cut"
    process = workshop.start(*words, str(run), program=torchrun)
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if (run / "metrics.jsonl").is_file() and len((run / "metrics.jsonl").read_text().splitlines()) >= 10:
            process.send_signal(signal.SIGTERM)  # torchrun hands it on to each process in turn
            break
        time.sleep(0.02)
    process.communicate(timeout=300)
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "interrupted"
    assert checkpoints(run) == [status["step"]]
    assert 10 <= status["step"] < 60
    three = [*torchrun[:3], "--nproc_per_node=3", "--master_port=29643"]
    odd = workshop.start(*words, str(run), "--resume", program=three)
    said = odd.communicate(timeout=300)[1]  # torchrun adds a traceback of its own
    assert odd.returncode != 0
    assert "a step of this run has 8 rows, which 3 processes cannot share evenly" in said
    again = workshop.train(*words, str(run), "--resume", program=torchrun)
    assert again.code == 0, again.err
    assert the_same(metrics(run)) == the_same(metrics(tmp_path / "whole"))
    assert weights(run) == weights(tmp_path / "whole")


def test_several_processes_need_one_folder(workshop: Workshop) -> None:
    done = workshop.train("two.yaml", env={"RANK": "0", "WORLD_SIZE": "2"})
    assert done.code == 2
    assert "several processes train together; give them one folder with --run-dir" in done.err


def test_processes_with_other_rows_do_not_train_together(workshop: Workshop) -> None:
    """Each node reads its own files: what differs is told by every process before the first step."""
    tiny.write_rows(workshop.path / "rows-0.jsonl", tiny.rows(24))
    tiny.write_rows(workshop.path / "rows-1.jsonl", tiny.rows(24)[::-1])
    script = workshop.path / "apart.py"
    script.write_text(
        "import os, sys\nfrom strix_train.__main__ import main\n"
        "rows = f'data.train=rows-{os.environ[\"RANK\"]}.jsonl'\n"
        "sys.exit(main(['two.yaml', '--run-dir', 'apart', '--set', 'backend=hf', '--set', rows]))\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=29647"]
    done = subprocess.run(
        [*torchrun, str(script)],
        cwd=workshop.path,
        env=workshop.environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if line.startswith("train: ")]
    sentence = "process 1 has other rows than process 0; give every node the same files and the same recipe"
    assert len(told) == 2
    assert all(line.endswith(sentence) for line in told), told
    assert not (workshop.path / "apart" / "metrics.jsonl").exists()
