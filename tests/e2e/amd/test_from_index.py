"""From the index to the lock."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.e2e.amd.images import FIRST, OTHERS
from tests.standin.amd import NEWER, OLDER, RELEASE, Release, archives
from tests.standin.command import PREFIX
from tests.standin.place import Place


@pytest.mark.parametrize("target", [FIRST, *OTHERS])
def test_a_lock_is_what_the_index_has_for_the_target(locked: Place, target: str) -> None:
    published = {item.sha256: item for item in archives(RELEASE, [target])}
    wheels = [item for entry in locked.locked(target)["wheels"].values() for item in entry["files"]]
    left_out = {"rocm-sdk-devel", "torchaudio"}
    assert {item["name"] for item in wheels} == {item.project for item in published.values()} - left_out
    for item in wheels:
        found = published[item["sha256"]]
        assert (item["version"], item["size"]) == (found.version, found.size)
        # where the files belong, not where this test has them from
        assert item["url"].startswith("https://")
        assert "127.0.0.1" not in item["url"]


def test_locking_asks_for_nothing_else(locked: Place, tmp_path: Path) -> None:
    """Exactly the pages and the files of the set: no other project, no other Python, nothing for Windows."""
    other = Place(tmp_path, locked.amd)
    for folder in ("images", "overrides"):
        (tmp_path / folder).symlink_to(locked.root / folder)
    (tmp_path / "cache/strix-finetune").mkdir(parents=True)
    (tmp_path / "cache/strix-finetune/apt").symlink_to(locked.root / "cache/strix-finetune/apt")
    other.well("lock", "--update", "torch", "--update", "rocm")
    wheels = [item for entry in locked.locked()["wheels"].values() for item in entry["files"]]
    assert locked.amd.files() == sorted(unquote(item["url"].rsplit("/", 1)[-1]) for item in wheels)
    pages = {asked.path.split("/")[-2] for asked in locked.amd.asked if asked.path.endswith("/")}
    assert pages == {item["name"] for item in wheels}


def test_what_is_locked_is_served(locked: Place) -> None:
    said = locked.well("lock", "--check")
    assert "the lock is complete and everything in it is served" in said.out


@pytest.mark.parametrize(("channel", "release"), [("amd-7.14", OLDER), ("amd-edge", NEWER)])
def test_the_other_channels_are_locked_from_their_indexes(
    place: Place, tmp_path: Path, channel: str, release: Release
) -> None:
    """The older index is one flat folder of files; the newer one has the next release beside the stable one."""
    other = Place.made(tmp_path, place.amd, channel)
    other.well("lock")
    wheels = [item for entry in other.locked()["wheels"].values() for item in entry["files"]]
    versions = {item["name"]: item["version"] for item in wheels}
    assert (versions["torch"], versions["rocm"]) == (release.torch_version, release.rocm)
    assert versions["triton"] == release.triton_version
    assert {item["sha256"] for item in wheels} <= {item.sha256 for item in archives(release, [FIRST])}
    assert f"FROM {PREFIX}/rocm:gfx1151-" in other.well("render", "pytorch").out
