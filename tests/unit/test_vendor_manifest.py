"""vendor.json, and the folder that it describes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from strix_finetune.errors import InputError, WorkError
from strix_finetune.vendor import check, manifest
from strix_finetune.vendor.manifest import Entry, LockEntry, Manifest

A = Entry("apt/sid-1/pool/a.deb", "a" * 64, 3, "http://mirror.example/a.deb", "2026-01-01T00:00:00Z")
B = Entry("wheels/python/b/b-1-py3-none-any.whl", "b" * 64, 5, "https://files.example/b.whl")
LOCK = LockEntry("1" * 64, "2" * 64, "apt/sid-1", {"base": (A.path,)}, (A.path, B.path))


def test_it_reads_what_it_wrote(tmp_path: Path) -> None:
    made = Manifest().with_lock("debian-cpu", LOCK, [A, B])
    manifest.save(tmp_path, made)
    assert manifest.read(tmp_path) == made
    text = (tmp_path / manifest.NAME).read_text()
    assert manifest.text(manifest.read(tmp_path)) == text
    assert json.loads(text)["files"][A.path] == {
        "sha256": A.sha256,
        "size": 3,
        "from": "http://mirror.example/a.deb",
        "time": "2026-01-01T00:00:00Z",
    }
    assert [path.name for path in tmp_path.iterdir()] == [manifest.NAME]


def test_a_file_that_stays_keeps_its_time_and_one_that_nobody_needs_goes() -> None:
    first = Manifest().with_lock("debian-cpu", LOCK, [A, B])
    other = Manifest().with_lock("debian-cpu", LOCK, [A, B]).with_lock("debian-gfx1151", LOCK, [replace(A, time="")])
    assert other.files[A.path] == A
    moved = Entry("apt/sid-2/pool/a.deb", "a" * 64, 3, A.source)
    second = first.with_lock("debian-cpu", replace(LOCK, files=(moved.path,), debs={}), [moved])
    assert list(second.files) == [moved.path]
    # another target may need what this one does not
    both = other.with_lock("debian-cpu", replace(LOCK, files=(moved.path,), debs={}), [moved])
    assert set(both.files) == {A.path, B.path, moved.path}


def test_another_file_of_the_same_name_is_another_file() -> None:
    first = Manifest().with_lock("debian-cpu", LOCK, [A, B])
    second = first.with_lock("debian-cpu", LOCK, [replace(A, sha256="c" * 64, time=""), B])
    assert second.files[A.path].time == ""
    assert second.files[A.path].sha256 == "c" * 64


def test_arrivals_are_noted_once() -> None:
    made = Manifest().with_lock("debian-cpu", LOCK, [A, B]).arrived([A.path, B.path], "2027-01-01T00:00:00Z")
    assert made.files[A.path].time == A.time
    assert made.files[B.path].time == "2027-01-01T00:00:00Z"


def test_index_pages_belong_to_no_lock() -> None:
    page = manifest.made("wheels/python/index.html", b"x")
    made = Manifest().with_lock("debian-cpu", LOCK, [A, B]).with_pages([page])
    assert made.files[page.path] == page
    assert made.with_pages([replace(page, time="later")]).files[page.path] == page
    assert page.path not in made.with_pages([]).files


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: data | {"format": 9}, "it has a newer format than 1; update strix-finetune"),
        (lambda data: data | {"format": 0}, "this is no manifest of vendored inputs: ValueError: format 0"),
        (lambda data: [], "this is no manifest of vendored inputs"),
        (lambda data: data | {"files": {}}, "is needed and not listed"),
        (
            lambda data: data | {"files": {"../up": data["files"][A.path]}},
            "'../up' is not a path inside the folder",
        ),
        (lambda data: data | {"files": {"/etc/x": data["files"][A.path]}}, "is not a path inside the folder"),
        (lambda data: data | {"locks": {"x": {}}}, "this is no manifest of vendored inputs: KeyError"),
    ],
)
def test_a_manifest_that_is_none(tmp_path: Path, change: object, sentence: str) -> None:
    manifest.save(tmp_path, Manifest().with_lock("debian-cpu", LOCK, [A, B]))
    path = tmp_path / manifest.NAME
    path.write_text(json.dumps(change(json.loads(path.read_text()))))  # type: ignore[operator]
    with pytest.raises(InputError) as caught:
        manifest.read(tmp_path)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")


def test_no_manifest_and_no_json(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is no folder of vendored inputs: it has no vendor\.json; make it with"):
        manifest.read(tmp_path)
    (tmp_path / manifest.NAME).write_text("{")
    with pytest.raises(InputError, match="it is no JSON"):
        manifest.read(tmp_path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        manifest.held(tmp_path / "new"),
        pytest.raises(WorkError, match="another 'strix-finetune vendor' is at work"),
        manifest.held(tmp_path / "new"),
    ):
        pass
    with manifest.held(tmp_path / "new"):
        assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; name a folder"), manifest.held(tmp_path / "file"):
        pass


def test_only_what_was_listed_is_removed(tmp_path: Path) -> None:
    before = Manifest().with_lock("debian-cpu", LOCK, [A, B])
    manifest.write(tmp_path, A.path, b"abc")
    manifest.write(tmp_path, f"{B.path}.part", b"half")
    manifest.write(tmp_path, "notes.txt", b"mine")
    assert manifest.remove_unlisted(tmp_path, before, Manifest()) == 2
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["notes.txt"]


def test_every_fault_of_a_folder_is_named(tmp_path: Path) -> None:
    good = manifest.made("archives/x/good", b"good")
    bad = manifest.made("archives/x/bad", b"good")
    short = manifest.made("archives/x/short", b"good")
    files = [good, bad, short, B]
    lock = replace(LOCK, files=tuple(entry.path for entry in files), debs={})
    for path, content in ((good.path, b"good"), (bad.path, b"evil"), (short.path, b"go")):
        manifest.write(tmp_path, path, content)
    told = [str(problem) for problem in check.faults(tmp_path, Manifest().with_lock("debian-cpu", lock, files))]
    cure = f"run 'strix-finetune vendor {tmp_path}' on a machine with a network"
    again = f"go on with 'strix-finetune vendor {tmp_path}'"
    assert told == [
        f"{tmp_path}: it does not hold all that debian-cpu needs: vendoring was interrupted; {again}",
        f"{tmp_path}/{bad.path}: this is not the file that vendor.json lists: its sha256 differs; {cure}",
        f"{tmp_path}/{short.path}: this file has 2 bytes, and vendor.json lists 4; {cure}",
        f"{tmp_path}/{B.path}: this vendored file is missing; {cure}",
    ]
