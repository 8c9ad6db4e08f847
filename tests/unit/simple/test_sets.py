"""One consistent set, what moves in it, and why there is none."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from urllib.parse import quote

from tests.standin.amd import KNOWN_BAD, NEWER, RELEASE, placeholders
from tests.standin.server import paths
from tests.standin.tree import Tree
from tests.standin.wheels import wheel
from tests.unit.simple.shop import WHOLE, Shop, archives, published, versions


def test_the_whole_set_of_a_target(shop: Shop) -> None:
    lock = shop.resolve()
    assert versions(lock) == WHOLE
    assert (lock.python, lock.index) == ("3.13", "stable")
    files = published(shop)
    for entry in lock.wheels:
        file = entry.url.rsplit("/", 1)[-1].replace("%2B", "+")
        assert entry.url == f"{shop.amd.url}{quote(shop.path(file))}"
        assert (entry.sha256, entry.size) == (files[file].sha256, files[file].size)
        # what was read to know its hash is where a build looks for it
        assert hashlib.sha256((shop.cache / "archives" / entry.sha256).read_bytes()).hexdigest() == entry.sha256
    assert len(shop.told) == len(WHOLE)
    assert "filelock" not in str(paths(shop.amd.asked))


def test_a_second_time_no_file_is_read_whole_again(shop: Shop) -> None:
    lock = shop.resolve()
    shop.amd.heal()
    shop.told.clear()
    assert shop.resolve().wheels == lock.wheels
    assert shop.told == []
    whole = [asked for asked in shop.amd.asked if asked.path.endswith(".whl") and not asked.range]
    assert whole == []


def test_a_file_that_was_replaced_under_its_name_is_read_again(shop: Shop) -> None:
    shop.resolve()
    triton = next(archive for archive in archives() if archive.project == "triton")
    other = wheel("triton", triton.version, {"triton/__init__.py": "# other\n"}, tag=RELEASE.tag)
    shop.amd.tree.add(other)
    shop.told.clear()
    assert [entry.sha256 for entry in shop.resolve().wheels if entry.name == "triton"] == [other.sha256]
    assert len(shop.told) == 1


def test_only_the_index_is_asked_and_placeholders_are_refused(shop: Shop) -> None:
    for archive in placeholders():
        if archive.project.startswith("amd-"):
            shop.amd.tree.add(archive)
    assert versions(shop.resolve()) == WHOLE
    assert (
        "amd_torch_device_gfx1100-0.0.1.dev0-py3-none-any.whl is an empty placeholder: it installs nothing"
        in shop.refused("amd-torch-device-{target}", target="gfx1100")
    )


def test_an_extra_that_is_unknown(shop: Shop) -> None:
    assert "torch 2.13.0+rocm10.0.0 has no extra 'device-gfx1250' (it has device-all, device-gfx1010" in shop.refused(
        target="gfx1250"
    )


def test_a_target_that_has_no_packs_here(shop: Shop) -> None:
    said = shop.refused(target="gfx1201")
    assert said == (
        "images/channels/amd.toml:40: the wheels of 'torch' cannot be had: the index 'stable' does not serve"
        " 'amd-torch-device-gfx1201', which torch 2.13.0+rocm10.0.0 needs; try again later, or take another version"
    )


def test_a_half_published_set_names_what_is_missing_and_what_is_complete(shop: Shop) -> None:
    for archive in archives(NEWER):
        shop.amd.tree.add(archive)
    shop.amd.tree.withdraw("amd_torch_device_gfx115x-2.14*")
    said = shop.refused("torch[device-{target}]==2.14.0+rocm10.1.0", "torchvision==0.29.0+rocm10.1.0")
    assert "has no amd-torch-device-gfx115x==2.14.0+rocm10.1.0 (it has 2.13.0+rocm10.0.0)" in said
    assert "which torch 2.14.0+rocm10.1.0 needs" in said
    assert said.endswith("; the newest complete set has torch 2.13.0+rocm10.0.0, torchvision 0.28.0+rocm10.0.0")
    # where a range leaves a choice, that set is it
    assert versions(shop.resolve("torch[device-{target}]>=2.11", "torchvision[device-{target}]")) == WHOLE


def test_the_newest_by_its_rocm(shop: Shop) -> None:
    older = replace(RELEASE, rocm="7.14.0", triton="3.8.0+git0d15ea5e")
    for archive in archives(older):
        shop.amd.tree.add(archive)
    assert versions(shop.resolve("torch[device-{target}]==2.13.0", "torchvision[device-{target}]")) == WHOLE
    chosen = versions(shop.resolve("torch[device-{target}]>=2.13", "rocm<10"))
    assert (chosen["torch"], chosen["rocm"]) == ("2.13.0+rocm7.14.0", "7.14.0")


def test_nightlies_are_previews_and_share_their_date(shop: Shop) -> None:
    first = replace(NEWER, rocm="10.2.0a20260929", torch="2.14.0")
    second = replace(first, rocm="10.2.0a20260930", triton="3.9.0+git22d5a2c0")
    for archive in [*archives(first), *archives(second)]:
        shop.amd.tree.add(archive)
    assert versions(shop.resolve("torch[device-{target}]", "torchvision[device-{target}]")) == WHOLE
    newest = versions(shop.resolve("torch[device-{target}]", "rocm>=10.2.0a0", "torchaudio"))
    assert {newest["torch"], newest["rocm"], newest["torchaudio"]} == {
        "2.14.0+rocm10.2.0a20260930",
        "10.2.0a20260930",
        "2.11.0.2+rocm10.2.0a20260930",
    }
    said = shop.refused("torch==2.14.0+rocm10.2.0a20260930", "torchaudio==2.11.0.2+rocm10.2.0a20260929")
    assert "torch 2.14.0+rocm10.2.0a20260930 is for ROCm 10.2.0a20260930" in said
    assert "torchaudio 2.11.0.2+rocm10.2.0a20260929 is for ROCm 10.2.0a20260929" in said
    assert "the newest complete set has torch 2.14.0+rocm10.2.0a20260930, torchaudio 2.11.0.2+rocm10.2.0a2026" in said


def test_an_index_of_nothing_but_nightlies(shop: Shop) -> None:
    shop.amd.tree = Tree(archives(KNOWN_BAD))
    assert versions(shop.resolve("torch[device-{target}]"))["torch"] == "2.12.0a0+rocm7.14.0a20260610"


def test_requirements_that_contradict_each_other(shop: Shop) -> None:
    for archive in archives(replace(NEWER, rocm="10.0.0", vision="0.29.0")):
        shop.amd.tree.add(archive)
    said = shop.refused("torch==2.13.0+rocm10.0.0", "torchvision==0.29.0+rocm10.0.0")
    assert (
        "no file meets torch==2.13.0+rocm10.0.0 (asked for) and torch==2.14.0+rocm10.0.0 (for torchvision 0.29" in said
    )


def test_what_is_no_requirement_is_said_with_its_line(shop: Shop) -> None:
    assert shop.refused("torch==") == "images/channels/amd.toml:40: 'torch==' is not a Python requirement; correct it"
    assert "names an address; only the channel's index is asked" in shop.refused("torch @ https://x.example/t.whl")


def test_no_file_fits(shop: Shop) -> None:
    shop.amd.tree.withdraw("torch-2.13.0*-cp313-linux_x86_64.whl")
    assert (
        "'torch' 2.13.0+rocm10.0.0 has no file for Python 3.13 and glibc 2.41-12 on x86_64; try again later"
        in shop.refused()
    )


def test_what_stays_and_what_moves(shop: Shop) -> None:
    ranges = ("torch[device-{target}]", "torchvision[device-{target}]", "rocm-bootstrap")
    lock = shop.resolve(*ranges)
    for archive in [*archives(NEWER), wheel("rocm-bootstrap", "0.2.0", {"b.py": ""}, tag="py3-none-any")]:
        shop.amd.tree.add(archive)
    shop.told.clear()
    assert shop.resolve(*ranges, previous=lock, upgrade=()) == lock
    assert shop.told == []
    moved = versions(shop.resolve(*ranges, previous=lock, upgrade=["rocm-bootstrap"]))
    assert moved == {**WHOLE, "rocm-bootstrap": "0.2.0"}
    moved = versions(shop.resolve(*ranges, previous=lock, upgrade=["torch"]))
    assert (moved["torch"], moved["torchvision"]) == ("2.14.0+rocm10.1.0", "0.29.0+rocm10.1.0")
    assert moved["rocm-bootstrap"] == "0.1.0"
    assert versions(shop.resolve(*ranges, previous=lock, upgrade=None))["rocm-bootstrap"] == "0.2.0"


def test_a_locked_file_that_became_another_is_not_taken_silently(shop: Shop) -> None:
    lock = shop.resolve()
    triton = next(archive for archive in archives() if archive.project == "triton")
    shop.amd.tree.add(wheel("triton", triton.version, {"triton/__init__.py": "# longer\n" * 9}, tag=RELEASE.tag))
    said = shop.refused(previous=lock, upgrade=())
    assert f"has another {triton.filename} than the lock (" in said
    assert f"bytes instead of {triton.size} bytes); find out why, then lock it with '--update triton'" in said
    assert versions(shop.resolve(previous=lock, upgrade=["triton"])) == WHOLE


def test_a_locked_version_that_is_gone_is_replaced(shop: Shop) -> None:
    lock = shop.resolve("torch[device-{target}]")
    shop.amd.tree = Tree(archives(NEWER))
    assert versions(shop.resolve("torch[device-{target}]", previous=lock, upgrade=()))["torch"] == "2.14.0+rocm10.1.0"
