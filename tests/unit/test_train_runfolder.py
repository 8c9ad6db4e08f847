"""Run folders and checkpoints: what counts as whole, and what a killed run leaves."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest

from strix_train.errors import InputError
from strix_train.runfolder import RunFolder, create, find_unfinished, is_whole, seal, whole_checkpoints


def checkpoint(folder: Path, step: int, *, sealed: bool = True, without: str = "") -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    for name in ("trainer_state.json", "optimizer.pt", "scheduler.pt", "adapter_model.safetensors"):
        if name != without:
            (path / name).write_text("content of " + name)
    if sealed:
        seal(path)
    return path


def test_a_sealed_checkpoint_is_whole(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 5)
    assert is_whole(path)
    assert json.loads((path / "complete.json").read_text())["step"] == 5


@pytest.mark.parametrize("name", ["optimizer.pt", "adapter_model.safetensors"])
def test_a_file_cut_off_or_gone_makes_it_broken(tmp_path: Path, name: str) -> None:
    path = checkpoint(tmp_path, 5)
    os.truncate(path / name, 3)
    assert not is_whole(path)
    (path / name).unlink()
    assert not is_whole(path)


def test_without_its_optimizer_it_never_was_whole(tmp_path: Path) -> None:
    assert not is_whole(checkpoint(tmp_path, 5, without="optimizer.pt"))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"files": 3}', '{"files": {"none": 1}}', "null"])
def test_a_broken_seal_is_no_seal(tmp_path: Path, content: str) -> None:
    path = checkpoint(tmp_path, 5)
    (path / "complete.json").write_text(content)
    assert not is_whole(path)


def test_the_newest_whole_one_is_taken_and_the_broken_ones_go(tmp_path: Path) -> None:
    from strix_train.watch import newest

    folder = RunFolder(tmp_path)
    assert newest(folder) is None
    checkpoint(folder.checkpoints, 9)
    tenth = checkpoint(folder.checkpoints, 10)
    broken = checkpoint(folder.checkpoints, 100, sealed=False)
    assert [path.name for path in whole_checkpoints(folder.checkpoints)] == ["checkpoint-9", "checkpoint-10"]
    assert newest(folder) == tenth
    assert not broken.exists()


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    from strix_train.watch import trim

    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 8)) + '{"step": 8, "lo')
    trim(metrics, 5)
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()] == [1, 2, 3, 4, 5]
    trim(tmp_path / "none.jsonl", 5)
    assert not (tmp_path / "none.jsonl").exists()


def test_folders_get_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "20300101-000000")
    made = [create(None, tmp_path / "runs", "r").path.name for _ in range(3)]
    assert made == ["r-20300101-000000", "r-20300101-000000-2", "r-20300101-000000-3"]


def test_a_wanted_folder_must_be_empty(tmp_path: Path) -> None:
    assert create(tmp_path / "a" / "b", tmp_path, "r").path == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "a" / "b" / "x").touch()
    with pytest.raises(InputError, match="is not an empty folder; name another one, or add --resume"):
        create(tmp_path / "a" / "b", tmp_path, "r")
    with pytest.raises(InputError, match="is not an empty folder"):
        create(tmp_path / "a" / "b" / "x", tmp_path, "r")
    with pytest.raises(InputError, match=r"is not a folder|cannot be made"):
        create(None, tmp_path / "a" / "b" / "x", "r")


def test_the_newest_unfinished_run_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no unfinished run of 'r'"):
        find_unfinished(None, tmp_path, "r")
    for number, state in ((1, ""), (2, "interrupted"), (3, "done")):
        run = RunFolder(tmp_path / f"r-2030010{number}-000000")
        run.path.mkdir()
        os.utime(run.path, (number, number))
        if state:
            run.finish(state)
            os.utime(run.path, (number, number))
    other = tmp_path / "r-x-20300104-000000"
    other.mkdir()
    assert find_unfinished(None, tmp_path, "r").path.name == "r-20300102-000000"
    with pytest.raises(InputError, match="is done; leave --resume out"):
        find_unfinished(tmp_path / "r-20300103-000000", tmp_path, "r")
    with pytest.raises(InputError, match="there is no run folder"):
        find_unfinished(tmp_path / "none", tmp_path, "r")


def test_a_folder_appears_whole_and_readable(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)

    def fill(aside: Path) -> None:
        assert not folder.adapter.exists()
        (aside / "w").write_text("1")
        (aside / "w").chmod(0o600)

    mask = os.umask(0o027)
    try:
        folder.write_folder("adapter", fill)
        folder.write_folder("adapter", lambda aside: (aside / "v").touch())
    finally:
        os.umask(mask)
    assert [path.name for path in folder.adapter.iterdir()] == ["v"]
    assert stat.S_IMODE((folder.adapter / "v").stat().st_mode) == 0o640
    assert stat.S_IMODE(folder.adapter.stat().st_mode) == 0o750


def test_a_failed_write_leaves_the_old_content(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_json("a.json", {"x": 1})

    def fail(aside: Path) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "w").touch()
    with pytest.raises(OSError, match="No space"):
        folder.write_folder("adapter", fail)
    assert [path.name for path in folder.adapter.iterdir()] == ["w"]
    assert folder.read_json("a.json") == {"x": 1}
    assert folder.read_json("none.json") is None
