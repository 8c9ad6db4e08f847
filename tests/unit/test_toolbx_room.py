"""What a container costs is told by the store's kind, and refused where there is no room for it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from strix_finetune.errors import WorkError
from strix_finetune.toolbx.room import cost
from tests.unit.test_toolbx import IMAGE, Stage, change, staged

SMALL = replace(IMAGE, size=1_300_000_000)


def stage_of(root: Path, driver: str, **options: object) -> Stage:
    stage = staged()
    change(stage, info=json.dumps({"store": {"graphRoot": str(root), "graphDriverName": driver} | options}))
    return stage


def listed(root: Path, text: str) -> None:
    (root / "overlay-images").mkdir()
    (root / "overlay-images/images.json").write_text(text)


def entry(image: str, *copies: str) -> str:
    return json.dumps([{"id": "f" * 64}, {"id": image, "mapped-layers": list(copies)}])


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A user without root, and how many bytes the store's disk has."""
    disk = SimpleNamespace(free=1 << 40)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: disk)
    return disk


@pytest.mark.parametrize(
    ("size", "words"),
    [(1, "0.0 GB more below"), (1_300_000_000, "1.3 GB more below"), (13 * 10**8, "12 s"), (26 * 10**9, "some 4 min")],
)
def test_a_rootless_user_is_told_the_cost(free: SimpleNamespace, tmp_path: Path, size: int, words: str) -> None:
    stage = stage_of(tmp_path, "overlay", graphOptions={})
    cost(stage, replace(IMAGE, size=size), stage.said.append)
    assert words in stage.said[0]
    assert stage.said[0].endswith("; the next one costs nothing")


def test_no_room_for_the_first_copy(free: SimpleNamespace, tmp_path: Path) -> None:
    free.free = 900_000_000
    stage = stage_of(tmp_path, "overlay")
    said = f"rootless Podman copies the image once for your user id, 1.3 GB, and {tmp_path} has 0.9 GB; make room there"
    with pytest.raises(WorkError) as caught:
        cost(stage, SMALL, stage.said.append)
    assert str(caught.value) == said
    assert stage.said == []


def test_a_copy_that_is_there_is_not_asked_for_again(free: SimpleNamespace, tmp_path: Path) -> None:
    free.free = 0
    listed(tmp_path, entry("a" * 64, "b" * 64))
    stage = stage_of(tmp_path, "overlay")
    cost(stage, SMALL, stage.said.append)
    assert stage.said == []


@pytest.mark.parametrize("text", [entry("a" * 64), entry("c" * 64, "b" * 64), "", "{", "[1]", "{}", "[{}]", "null"])
def test_without_a_copy_the_room_is_asked_for(free: SimpleNamespace, tmp_path: Path, text: str) -> None:
    free.free = 0
    listed(tmp_path, text)
    stage = stage_of(tmp_path, "overlay")
    with pytest.raises(WorkError, match="copies the image once"):
        cost(stage, SMALL, stage.said.append)


@pytest.mark.parametrize("uid", [0, 1000])
def test_vfs_copies_for_each_container_and_for_root_too(
    free: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    stage = stage_of(tmp_path, "vfs")
    cost(stage, SMALL, stage.said.append)
    assert "Podman's driver vfs copies the whole image for each container, 1.3 GB more" in stage.said[0]
    assert "costs nothing" not in stage.said[0]
    free.free = 900_000_000
    with pytest.raises(
        WorkError, match=r"0\.9 GB; make room there, or change to overlay \(strix-finetune doctor says how"
    ):
        cost(stage, SMALL, stage.said.append)


def test_fuse_overlayfs_and_root_copy_nothing(
    free: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free.free = 0
    program = {"overlay.mount_program": {"Executable": "/usr/bin/fuse-overlayfs"}}
    stage = stage_of(tmp_path, "overlay", graphOptions=program)
    cost(stage, SMALL, stage.said.append)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    stage = stage_of(tmp_path, "overlay")
    cost(stage, SMALL, stage.said.append)
    assert stage.said == []
