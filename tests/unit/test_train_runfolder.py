"""Run folders: their names, which one is resumed, and that what stands in them is whole."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from strix_train.errors import InputError
from strix_train.runfolder import RunFolder, create, find_unfinished


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
        if state:
            run.finish(state)
    other = tmp_path / "r-x-20300104-000000"
    other.mkdir()
    assert find_unfinished(None, tmp_path, "r").path.name == "r-20300102-000000"
    with pytest.raises(InputError, match="is done; leave --resume out"):
        find_unfinished(tmp_path / "r-20300103-000000", tmp_path, "r")
    with pytest.raises(InputError, match="there is no run folder"):
        find_unfinished(tmp_path / "none", tmp_path, "r")


def test_a_run_is_resumed_by_its_own_recipe(tmp_path: Path) -> None:
    """Neither the run of q-4b nor that of q1, although their names begin alike or fit q[1] as a pattern."""
    for folder in ("q-20300101-000000", "q-4b-20300102-000000", "q[1]-20300101-000000", "q1-20300103-000000"):
        (tmp_path / folder).mkdir()
    for name in ("q", "q-4b", "q[1]", "q1"):
        assert find_unfinished(None, tmp_path, name).path.name.rpartition("-2030")[0] == name
    with pytest.raises(InputError, match="no unfinished run of 'q-4'"):
        find_unfinished(None, tmp_path, "q-4")


def test_the_newest_run_is_the_one_that_began_last(tmp_path: Path) -> None:
    """`train report` writes into a folder, and so changes the folder's own time."""
    names = ("q-20300101-000000", "q-20300101-000000-2", "q-20300101-000000-10")
    for age, name in enumerate(reversed(names)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (age, age))
    assert find_unfinished(None, tmp_path, "q").path.name == names[-1]
    (tmp_path / "q-20300102-000000").mkdir()
    (tmp_path / "q-20300101-000000" / "report.html").touch()
    assert find_unfinished(None, tmp_path, "q").path.name == "q-20300102-000000"


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


def test_a_failed_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    folder.write_json("a.json", {"x": 1})

    def fail(*aside: Path) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "w").touch()
    with pytest.raises(OSError, match="No space"):
        folder.write_folder("adapter", fail)
    assert [path.name for path in folder.adapter.iterdir()] == ["w"]
    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        folder.write_json("b.json", 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "adapter"]
    assert folder.read_json("a.json") == {"x": 1}
    assert folder.read_json("none.json") is None


def test_two_processes_never_train_in_one_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.held(), pytest.raises(InputError, match="another process is training in"), folder.held():
        pass
    with folder.held():
        pass


def test_what_was_trained_has_a_name_of_its_own(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.result_name(SimpleNamespace(peft_config={})) == "adapter"
    assert folder.result_name(SimpleNamespace()) == "model"
    assert folder.result == tmp_path / "adapter"
    (tmp_path / "model").mkdir()
    assert folder.result == tmp_path / "model"
