"""What is sent: named by its content, whole or not at all."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from strix_finetune.cluster import parcels, sending
from strix_finetune.cluster.nodes import Node
from strix_finetune.cluster.reach import Reached
from strix_finetune.errors import InputError, WorkError


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    folder = tmp_path / "rows"
    (folder / "more").mkdir(parents=True)
    (folder / "a b.jsonl").write_text("{}\n")
    (folder / "more/b.jsonl").write_text("[]\n")
    (tmp_path / "elsewhere.jsonl").write_text("elsewhere\n")
    (folder / "link.jsonl").symlink_to("../elsewhere.jsonl")
    return folder


@pytest.fixture
def here() -> Reached:
    """This machine: how it is reached is another test's."""
    return Reached(Node("here", 0), engine=None)  # type: ignore[arg-type]


def one(path: Path) -> parcels.Parcel:
    (parcel,) = parcels.gather([path], lambda path, size: None)
    return parcel


def test_the_digest_is_of_names_and_contents(rows: Path) -> None:
    before = one(rows)
    assert [part.name for part in before.parts] == ["a b.jsonl", "link.jsonl", "more/b.jsonl"]
    (rows / "more/b.jsonl").touch()
    assert one(rows).digest == before.digest
    (rows / "more/b.jsonl").write_text("[1]\n")
    changed = one(rows)
    assert changed.digest != before.digest
    (rows / "more/b.jsonl").rename(rows / "more/c.jsonl")
    assert one(rows).digest not in (before.digest, changed.digest)


def test_the_archive_has_all_of_it_and_links_are_followed(rows: Path) -> None:
    buffer = io.BytesIO()
    parcels.stream(one(rows), buffer.write)
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as tar:
        assert tar.getnames() == [".manifest", "rows/a b.jsonl", "rows/link.jsonl", "rows/more/b.jsonl"]
        link = tar.extractfile("rows/link.jsonl")
        assert link
        assert link.read() == b"elsewhere\n"


def test_folders_that_links_lead_to_are_not_sent_again(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    (blobs / "1").write_text("x")
    (snapshot / "config.json").symlink_to("../blobs/1")
    assert parcels.without_targets([snapshot, blobs]) == [snapshot]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: it cannot be read: No such file"):
        one(tmp_path / "nowhere")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "a\nb").write_text("")
    with pytest.raises(InputError, match="line end or a backslash; rename it"):
        one(tmp_path / "odd")


def test_a_node_gets_each_parcel_once(rows: Path, tmp_path: Path, here: Reached) -> None:
    place = tmp_path / "node"
    (place / sending.SENT).mkdir(parents=True)
    wanted = parcels.gather([rows, tmp_path / "elsewhere.jsonl"], lambda path, size: None)
    assert sending.deliver(here, wanted, str(place)) == wanted
    assert sending.deliver(here, wanted, str(place)) == []
    for parcel in wanted:
        there = place / sending.SENT / parcel.stored
        done = subprocess.run(["diff", "-r", "--no-dereference", str(there), str(parcel.path)], capture_output=True)
        assert done.returncode == 0 or b"symbolic link" in done.stdout
    assert (place / sending.SENT / wanted[0].stored / "link.jsonl").read_text() == "elsewhere\n"
    assert sorted(path.name for path in (place / sending.SENT).iterdir()) == sorted(each.digest for each in wanted)


def test_what_was_sent_cannot_be_written_but_removed_by_its_owner(rows: Path, tmp_path: Path, here: Reached) -> None:
    place = tmp_path / "node" / sending.SENT
    place.mkdir(parents=True)
    parcel = one(rows)
    sending.deliver(here, [parcel], str(place.parent))
    there = [place / parcel.digest, *(place / parcel.digest).rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in there if path.is_file()} == {0o444}
    assert {path.stat().st_mode & 0o700 for path in there if path.is_dir()} == {0o700}


def test_what_a_power_cut_left_is_removed_and_not_what_another_sends(rows: Path, tmp_path: Path, here: Reached) -> None:
    place = tmp_path / "node" / sending.SENT
    old, new = place / ".partial-old", place / ".partial-new"
    for partial in (old, new):
        (partial / "rows").mkdir(parents=True)
        (partial / "rows/a").write_text("a")
        (partial / "rows").chmod(0o500)  # as an earlier version left it
    long_ago = time.time() - 3 * 24 * 3600
    os.utime(old, (long_ago, long_ago))
    parcel = one(rows)
    sending.deliver(here, [parcel], str(place.parent))
    assert sorted(path.name for path in place.iterdir()) == [new.name, parcel.digest]
    (new / "rows").chmod(0o700)


def test_what_changed_on_the_way_is_refused_and_nothing_stays(rows: Path, tmp_path: Path, here: Reached) -> None:
    place = tmp_path / "node"
    (place / sending.SENT).mkdir(parents=True)
    parcel = one(rows)
    (rows / "more/b.jsonl").write_text("()\n")  # of the same length
    with pytest.raises(WorkError, match=r"node here: .*rows did not get there: it arrived damaged"):
        sending.deliver(here, [parcel], str(place))
    assert list((place / sending.SENT).iterdir()) == []


def test_a_folder_of_the_nodes_own_counts_when_all_of_it_is_the_same(rows: Path, tmp_path: Path, here: Reached) -> None:
    parcel = one(rows)
    assert sending.has_same(here, parcel, str(rows))
    assert not sending.has_same(here, parcel, str(tmp_path / "nowhere"))
    (rows / "a b.jsonl").write_text("[]\n")
    assert not sending.has_same(here, parcel, str(rows))
