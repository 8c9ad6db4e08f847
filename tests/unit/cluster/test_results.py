"""The run folder: which one is gone on with, and the copy that comes here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strix_finetune.cluster import results
from strix_finetune.cluster.nodes import Node
from strix_finetune.cluster.reach import Reached
from strix_finetune.errors import InputError, WorkError

HERE = Reached(Node("strix1", 0), engine=None)  # type: ignore[arg-type]


def run(folder: Path, state: str, at: int) -> Path:
    folder.mkdir(parents=True)
    if state:
        (folder / "status.json").write_text('{\n  "state": "' + state + '"\n}\n')
    os.utime(folder, (at, at))
    return folder


def test_the_newest_that_is_not_done_is_gone_on_with(tmp_path: Path) -> None:
    run(tmp_path / "demo-20261130-1", "interrupted", 100)
    run(tmp_path / "demo-20261130-2", "", 200)
    run(tmp_path / "demo-20261130-3", "done", 300)
    run(tmp_path / "demo2-20261130-4", "failed", 400)
    assert results.unfinished(HERE, str(tmp_path), "demo") == "demo-20261130-2"
    with pytest.raises(InputError, match=r"no unfinished run of 'other' in .* on strix1; leave --resume out"):
        results.unfinished(HERE, str(tmp_path), "other")
    with pytest.raises(InputError):
        results.unfinished(HERE, str(tmp_path / "nowhere"), "demo")


def test_all_but_the_checkpoints_come_here(tmp_path: Path) -> None:
    there = run(tmp_path / "there/demo-1", "done", 1)
    for name in ("adapter/weights", "checkpoints/checkpoint-1/weights", "log.txt"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text(name)
    target = tmp_path / "here/demo-1"
    assert results.fetch(HERE, str(there), target)
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()) == [
        "adapter/weights",
        "log.txt",
        "status.json",
    ]
    # once more, in the place of what came before
    (there / "log.txt").write_text("longer")
    assert results.fetch(HERE, str(there), target)
    assert (target / "log.txt").read_text() == "longer"


def test_what_is_not_there_is_no_run_folder(tmp_path: Path) -> None:
    assert not results.fetch(HERE, str(run(tmp_path / "empty", "", 1)), tmp_path / "here")
    with pytest.raises(WorkError, match=r"could not be copied: .*nowhere"):
        results.fetch(HERE, str(tmp_path / "nowhere"), tmp_path / "here")
    assert not (tmp_path / "here").exists()
    assert not list(tmp_path.glob(".*"))
