"""The run folder: which one is gone on with, and the copy that comes here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from strix_finetune.cluster import results
from strix_finetune.cluster.nodes import Node
from strix_finetune.cluster.reach import Reached
from strix_finetune.errors import InputError, WorkError

HERE = Reached(Node("strix1", 0), engine=None)  # type: ignore[arg-type]


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


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
    run(tmp_path / "demo-4b-20261130-5", "failed", 500)
    run(tmp_path / "demo-7b-lora-20261130-6", "failed", 600)
    run(tmp_path / "demo-70-20261130-7", "failed", 700)
    run(tmp_path / "my demo-20261130-101500", "failed", 800)
    run(tmp_path / "my demo-20261130-111500", "done", 900)
    assert results.unfinished(HERE, str(tmp_path), "my demo") == "my demo-20261130-101500"
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
    assert results.fetch(HERE, str(there), target) == target
    assert names(target) == [
        results.MARK,
        "adapter/weights",
        "log.txt",
        "status.json",
    ]
    # once more, in the place of what came before
    (there / "log.txt").write_text("longer")
    assert results.fetch(HERE, str(there), target) == target
    assert (target / "log.txt").read_text() == "longer"


def test_what_is_not_there_is_no_run_folder(tmp_path: Path) -> None:
    assert not results.fetch(HERE, str(run(tmp_path / "empty", "", 1)), tmp_path / "here")
    with pytest.raises(WorkError, match=r"could not be copied: .*nowhere"):
        results.fetch(HERE, str(tmp_path / "nowhere"), tmp_path / "here")
    assert not (tmp_path / "here").exists()
    assert not list(tmp_path.glob(".*"))


def there(tmp_path: Path) -> Path:
    folder = run(tmp_path / "there/demo-1", "interrupted", 1)
    for name in ("adapter/weights", "checkpoints/checkpoint-1/weights", "log.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_a_run_of_this_machine_keeps_its_name_and_its_checkpoints(tmp_path: Path) -> None:
    head, mine = there(tmp_path), tmp_path / "here/demo-1"
    (mine / "checkpoints/checkpoint-9").mkdir(parents=True)
    (mine / "checkpoints/checkpoint-9/weights").write_text("mine")
    (mine / "log.txt").write_text("mine")
    beside = mine.with_name("demo-1-2")
    for _ in range(2):  # the second one brings the copy up to date
        assert results.fetch(HERE, str(head), mine) == beside
    assert (names(mine), (mine / "log.txt").read_text()) == (["checkpoints/checkpoint-9/weights", "log.txt"], "mine")
    assert names(beside) == [results.MARK, "adapter/weights", "log.txt", "status.json"]
    assert sorted(path.name for path in mine.parent.iterdir()) == ["demo-1", "demo-1-2"]


@pytest.mark.parametrize("leads", ["to a folder", "to a copy", "nowhere", "to a file"])
def test_a_link_stays_and_nothing_is_written_where_it_leads(tmp_path: Path, leads: str) -> None:
    head, target, other = there(tmp_path), tmp_path / "here/demo-1", tmp_path / "other"
    target.parent.mkdir()
    if leads == "to a file":
        other.write_text("mine")
    elif leads == "to a folder":
        other.mkdir()
    elif leads == "to a copy":
        assert results.fetch(HERE, str(head), other) == other
        (head / "log.txt").write_text("longer")
    target.symlink_to(other)
    before = {name: (other / name).read_text() for name in names(other)} if other.is_dir() else {}
    assert results.fetch(HERE, str(head), target) == target.with_name("demo-1-2")
    assert target.readlink() == other
    assert other.exists() == (leads != "nowhere")
    assert not other.is_dir() or {name: (other / name).read_text() for name in names(other)} == before
    assert (target.with_name("demo-1-2") / "adapter/weights").is_file()


def test_what_was_added_to_a_copy_stays_when_it_is_brought_up_to_date(tmp_path: Path) -> None:
    head, target = there(tmp_path), tmp_path / "here/demo-1"
    assert results.fetch(HERE, str(head), target) == target
    (target / "gguf").mkdir()
    (target / "gguf/model.gguf").write_text("an export")
    (target / "adapter/notes").write_text("notes")
    (head / "status.json").unlink()  # as while it goes on
    (head / "log.txt").write_text("longer")
    (head / "samples").mkdir()
    (head / "samples/1").write_text("new")
    assert results.fetch(HERE, str(head), target) == target
    (head / "status.json").write_text('{"state": "done"}')
    assert results.fetch(HERE, str(head), target) == target
    assert (target / "status.json").read_text() == '{"state": "done"}'
    assert (target / "log.txt").read_text() == "longer"
    added = ["adapter/notes", "gguf/model.gguf"]
    assert names(target) == sorted([results.MARK, "adapter/weights", "log.txt", "samples/1", "status.json", *added])
    assert (target / "gguf/model.gguf").read_text() == "an export"


def change(copy: Path) -> None:
    (copy / "log.txt").write_text("mine")


def add_what_comes_later(copy: Path) -> None:
    (copy / "gguf").mkdir()
    (copy / "gguf/model").write_text("mine")


def lead_elsewhere(copy: Path) -> None:
    elsewhere = copy.parents[1] / "elsewhere"
    (copy / "adapter").rename(elsewhere)
    (copy / "adapter").symlink_to(elsewhere)


def be_in_the_way(copy: Path) -> None:
    (copy / "gguf").write_text("mine")


def have_no_mark(copy: Path) -> None:
    (copy / results.MARK).unlink()


@pytest.mark.parametrize("act", [change, add_what_comes_later, lead_elsewhere, be_in_the_way, have_no_mark])
def test_a_copy_that_was_changed_stays_as_it_is(tmp_path: Path, act: Callable[[Path], None]) -> None:
    head, target = there(tmp_path), tmp_path / "here/demo-1"
    assert results.fetch(HERE, str(head), target) == target
    act(target)
    before = {name: (target / name).read_bytes() for name in names(target) if (target / name).is_file()}
    (head / "adapter/weights").write_text("other weights")
    (head / "gguf").mkdir()
    (head / "gguf/model").write_text("of the head")
    assert results.fetch(HERE, str(head), target) == target.with_name("demo-1-2")
    assert {name: (target / name).read_bytes() for name in names(target) if (target / name).is_file()} == before
    assert not (tmp_path / "elsewhere").exists() or (tmp_path / "elsewhere/weights").read_text() == "adapter/weights"
    assert (target.with_name("demo-1-2") / "gguf/model").read_text() == "of the head"


def test_another_run_of_the_same_name_is_another_run(tmp_path: Path) -> None:
    """The copy may be all that there is of the one before."""
    head, target = there(tmp_path), tmp_path / "here/demo-1"
    assert results.fetch(HERE, str(head), target) == target
    head.rename(tmp_path / "there/gone")
    (there(tmp_path) / "adapter/weights").write_text("of the second")
    assert results.fetch(HERE, str(head), target) == target.with_name("demo-1-2")
    assert (target / "adapter/weights").read_text() == "adapter/weights"
    assert (target.with_name("demo-1-2") / "adapter/weights").read_text() == "of the second"


ENDS = {
    "between two files": ("head -c 2048", "exit 2", r"no space on that disk"),
    "by a lost connection": ("head -c 2048", "exit 255", r"no space on that disk"),
    "killed": ("head -c 2048", "kill -9 $$", r"no space on that disk"),
    "between two files, though it ends well": ("head -c 2048", "exit 0", r"no space on that disk"),
    "within a header": ("head -c 2200", "exit 0", r"no space on that disk"),
    "within a file": ("head -c 1600", "exit 0", r"no space on that disk"),
    "silently": ("head -c 2048", "exit 0", r"its end is missing"),
    "at its last word": ("cat", "exit 2", r"no space on that disk"),
}


@pytest.mark.parametrize("how", ENDS)
def test_an_archive_that_is_not_whole_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    head, target = there(tmp_path), tmp_path / "here/demo-1"
    assert results.fetch(HERE, str(head), target) == target
    before = {name: (target / name).read_text() for name in names(target)}
    (head / "log.txt").write_text("longer")
    cut, end, words = ENDS[how]
    program = tmp_path / "bin/tar"
    program.parent.mkdir()
    real = shutil.which("tar")
    say = "" if how == "silently" else 'echo "tar: no space on that disk" >&2'
    program.write_text(f'#!/bin/sh\n{real} --sort=name "$@" | {cut}\n{say}\n{end}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    with pytest.raises(WorkError, match=rf"of strix1 could not be copied: .*{words}; it is whole there; copy it to"):
        results.fetch(HERE, str(head), target)
    assert {name: (target / name).read_text() for name in names(target)} == before
    assert [path.name for path in target.parent.iterdir()] == ["demo-1"]
    # a file that grew while it was read harms nothing
    program.write_text(f'#!/bin/sh\n{real} "$@"\necho "tar: ./log.txt: file changed as we read it" >&2\nexit 1\n')
    assert results.fetch(HERE, str(head), target) == target
    assert (target / "log.txt").read_text() == "longer"


def test_where_nothing_can_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(WorkError, match=r"could not be copied: .*runs.*; it is whole there"):
        results.fetch(HERE, str(there(tmp_path)), tmp_path / "runs/demo-1")
    assert (tmp_path / "runs").read_text() == "a file"
