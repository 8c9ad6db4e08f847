"""Checkpoints: what counts as whole, what a killed process leaves, what may be resumed from and what goes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from strix_train import checkpoints
from strix_train.errors import InputError, TrainError

SOURCES = Path(checkpoints.__file__).parents[1]
FILES = ("trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth", "adapter_model.safetensors")


def written(parent: Path, step: int, *, without: str = "") -> Path:
    """Write what a trainer writes, aside."""
    path = checkpoints.aside(parent) / f"checkpoint-{step}"
    path.mkdir(parents=True)
    for name in FILES:
        if name != without:
            (path / name).write_text(f"content of {name} at {step}")
    return path


def published(parent: Path, *steps: int) -> list[Path]:
    found = []
    for step in steps:
        written(parent, step)
        found.append(checkpoints.publish(parent, step, world=1))
    return found


def names(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir())


def test_a_published_checkpoint_is_whole(tmp_path: Path) -> None:
    (path,) = published(tmp_path, 5)
    assert checkpoints.fault(path, deep=True) == ""
    found = json.loads((path / "complete.json").read_text())
    assert (found["step"], found["world"]) == (5, 1)
    assert found["files"]["optimizer.pt"]["size"] == len("content of optimizer.pt at 5")
    assert len(found["files"]["optimizer.pt"]["sha256"]) == 64
    assert names(tmp_path) == ["checkpoint-5"]


@pytest.mark.parametrize("name", ["optimizer.pt", "adapter_model.safetensors", "rng_state.pth"])
def test_what_is_wrong_is_named(tmp_path: Path, name: str) -> None:
    (path,) = published(tmp_path, 5)
    length = (path / name).stat().st_size
    (path / name).write_text("C" + (path / name).read_text()[1:])
    assert checkpoints.fault(path) == ""
    assert checkpoints.fault(path, deep=True) == f"{name} is not the file that was written"
    os.truncate(path / name, 3)
    assert checkpoints.fault(path) == f"{name} has 3 bytes instead of {length}"
    (path / name).unlink()
    assert checkpoints.fault(path) == f"{name} is missing"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("optimizer.pt", "the optimizer"),
        ("scheduler.pt", "the scheduler"),
        ("rng_state.pth", "the random numbers' state"),
        ("trainer_state.json", "the trainer's state"),
    ],
)
def test_a_checkpoint_that_lacks_a_part_is_never_sealed(tmp_path: Path, name: str, what: str) -> None:
    written(tmp_path, 5, without=name)
    with pytest.raises(TrainError, match=f"checkpoint-5 was written without {what}, so nothing could go on from it"):
        checkpoints.publish(tmp_path, 5)
    assert not (tmp_path / "checkpoint-5").exists()


def test_other_ways_of_sharding_have_other_names(tmp_path: Path) -> None:
    path = written(tmp_path, 3, without="optimizer.pt")
    (path / "optimizer_0").mkdir()
    (path / "optimizer_0" / "__0_0.distcp").write_text("x")
    (path / "rng_state.pth").rename(path / "rng_state_0.pth")
    assert checkpoints.fault(checkpoints.publish(tmp_path, 3), deep=True) == ""
    path = written(tmp_path, 4, without="optimizer.pt")
    (path / "scheduler.pt").unlink()
    (path / "global_step4").mkdir()
    (path / "global_step4" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_text("x")
    assert checkpoints.fault(checkpoints.publish(tmp_path, 4), deep=True) == ""


@pytest.mark.parametrize("content", ["", "{", "[]", '{"files": 3}', '{"files": {"none": 1}}', "null", '{"files": {}}'])
def test_a_broken_seal_is_no_seal(tmp_path: Path, content: str) -> None:
    (path,) = published(tmp_path, 5)
    (path / "complete.json").write_text(content)
    assert checkpoints.fault(path)
    assert checkpoints.whole(tmp_path) == []


def test_the_newest_whole_one_is_taken_and_the_user_hears_why_not_another(tmp_path: Path) -> None:
    told: list[str] = []
    assert checkpoints.newest(tmp_path / "none", told.append) is None
    _, tenth, eleventh = published(tmp_path, 9, 10, 11)
    (eleventh / "optimizer.pt").unlink()
    assert checkpoints.newest(tmp_path, told.append) == tenth
    assert told == ["checkpoint-11 is not used: optimizer.pt is missing"]


def test_what_was_never_sealed_goes(tmp_path: Path) -> None:
    published(tmp_path, 9)
    written(tmp_path, 10)  # killed while it wrote
    unsealed = tmp_path / "checkpoint-100"  # killed while the old one was removed
    shutil.copytree(tmp_path / "checkpoint-9", unsealed)
    (unsealed / "complete.json").unlink()
    older = tmp_path / "checkpoint-8"
    shutil.copytree(unsealed, older)
    told: list[str] = []
    assert checkpoints.newest(tmp_path, told.append) == tmp_path / "checkpoint-9"
    assert (names(tmp_path), told) == (["checkpoint-9"], [])


def test_where_every_checkpoint_is_damaged_the_run_is_not_begun_anew_in_silence(tmp_path: Path) -> None:
    first, second = published(tmp_path, 1, 2)
    (first / "optimizer.pt").unlink()
    (second / "rng_state.pth").write_text("other")
    with pytest.raises(InputError) as caught:
        checkpoints.newest(tmp_path, lambda text: None)
    text = str(caught.value)
    assert "no checkpoint in" in text
    assert "checkpoint-1: optimizer.pt is missing" in text
    assert "checkpoint-2: rng_state.pth has 5 bytes instead of 29" in text
    assert text.endswith("; put the file back, or begin another run without --resume")


def test_only_the_newest_stay_and_one_that_may_be_needed(tmp_path: Path) -> None:
    published(tmp_path, 1, 2, 3, 4, 100)
    checkpoints.prune(tmp_path, keep=3)
    assert names(tmp_path) == ["checkpoint-100", "checkpoint-3", "checkpoint-4"]
    checkpoints.prune(tmp_path, keep=1, spare=3)
    assert names(tmp_path) == ["checkpoint-100", "checkpoint-3"]
    checkpoints.drop_after(tmp_path, 99)
    assert names(tmp_path) == ["checkpoint-3"]


def test_a_damaged_one_is_replaced_by_the_step_done_again(tmp_path: Path) -> None:
    (path,) = published(tmp_path, 7)
    (path / "optimizer.pt").write_text("")
    (again,) = published(tmp_path, 7)
    assert again == path
    assert checkpoints.fault(path, deep=True) == ""


def test_a_kill_between_any_two_changes_of_the_disk_leaves_a_whole_one(tmp_path: Path) -> None:
    """Every call that changes names is a place to be killed at: what is left then must resume from 1 or from 2."""
    code = f"""
import os, pathlib, sys
from strix_train import checkpoints
parent, limit = pathlib.Path(sys.argv[1]), int(sys.argv[2])
count = 0
def deadly(function):
    def call(*args, **kwargs):
        global count
        count += 1
        if count == limit:
            os.kill(os.getpid(), 9)
        return function(*args, **kwargs)
    return call
for owner, name in ((os, "replace"), (os, "rename"), (os, "unlink"), (os, "rmdir"), (os, "mkdir"), (os, "fsync")):
    setattr(owner, name, deadly(getattr(owner, name)))
path = checkpoints.aside(parent) / "checkpoint-2"
path.mkdir(parents=True)
for name in {FILES!r}:
    (path / name).write_text("content of " + name)
checkpoints.publish(parent, 2, world=1)
checkpoints.prune(parent, keep=1)
print("whole")
"""
    template = tmp_path / "template"
    published(template, 1)
    found = set()
    for limit in range(1, 60):
        parent = tmp_path / str(limit)
        shutil.copytree(template, parent)
        done = subprocess.run(
            [sys.executable, "-S", "-c", code, str(parent), str(limit)],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(SOURCES)},
        )
        newest = checkpoints.newest(parent, lambda text: pytest.fail(text))
        assert newest is not None
        found.add(newest.name)
        if done.stdout == "whole\n":
            break
        assert done.returncode == -9, done.stderr
    assert limit > 10
    assert found == {"checkpoint-1", "checkpoint-2"}
    assert newest.name == "checkpoint-2"
