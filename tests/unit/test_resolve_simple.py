"""Sets of wheels from an index: AMD's layout by the stand-in, and pages as other indexes have them."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import tarfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

import pytest

from strix_finetune.errors import FetchFailed, LockError, Place, StrixError
from strix_finetune.lockmodel import WheelSetLock
from strix_finetune.netconf import NetSettings
from strix_finetune.resolve.simple import resolve_wheels
from strix_finetune.schema import Index, WheelSet
from tests.standin.amd import KNOWN_BAD, NEWER, RELEASE, Release, placeholders
from tests.standin.amd import archives as make_archives
from tests.standin.faults import Altered, Cut, Shortened, Status
from tests.standin.server import Standin, paths
from tests.standin.tree import Answer, Tree
from tests.standin.wheels import Archive, metadata, sdist, wheel

FOLLOW = ["rocm*", "amd-torch*", "triton"]
TORCH = "torch[device-{target}]==2.13.0+rocm10.0.0"
VISION = "torchvision[device-{target}]==0.28.0+rocm10.0.0"
WHOLE = {
    "amd-torch-device-gfx1151": "2.13.0+rocm10.0.0",
    "amd-torch-device-gfx115x": "2.13.0+rocm10.0.0",
    "amd-torchvision-device-gfx1151": "0.28.0+rocm10.0.0",
    "rocm": "10.0.0",
    "rocm-bootstrap": "0.1.0",
    "rocm-sdk-core": "10.0.0",
    "rocm-sdk-device-gfx1151": "10.0.0",
    "rocm-sdk-libraries": "10.0.0",
    "torch": "2.13.0+rocm10.0.0",
    "torchvision": "0.28.0+rocm10.0.0",
    "triton": "3.8.0+git4cff872c.rocm10.0.0",
}


@functools.cache
def archives(release: Release = RELEASE, targets: tuple[str, ...] = ("gfx1151",)) -> tuple[Archive, ...]:
    """A release, made once: the same bytes each time."""
    return tuple(make_archives(release, targets))


PLACE = Place(Path("images/channels/amd.toml"), 40)


@dataclass
class Shop:
    """A stand-in and what is asked of it. `told`: the lines about files that are read whole."""

    amd: Standin
    cache: Path
    told: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def resolve(
        self,
        *requirements: str,
        target: str = "gfx1151",
        follow: Collection[str] = FOLLOW,
        absent: Collection[int] = (403,),
        index: str = "",
        glibc: str = "2.41-12",
        previous: WheelSetLock | None = None,
        upgrade: Collection[str] | None = None,
    ) -> WheelSetLock:
        return resolve_wheels(
            "torch",
            WheelSet(index="stable", requirements=list(requirements or (TORCH, VISION)), follow=list(follow)),
            Index(url=index or self.amd.index, absent=list(absent)),
            target=target,
            python="3.13",
            glibc=glibc,
            settings=NetSettings(),
            previous=previous,
            upgrade=upgrade,
            place=PLACE,
            cache=self.cache,
            tell=self.told.append,
            sleep=self.waits.append,
        )

    def refused(self, *requirements: str, **options: object) -> str:
        """The one sentence of a refusal."""
        with pytest.raises(StrixError) as caught:
            self.resolve(*requirements, **options)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def path(self, file: str) -> str:
        return self.amd.tree.path(file)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with Standin(Tree(archives(RELEASE))) as amd:
        yield Shop(amd, tmp_path / "cache")


def versions(lock: WheelSetLock) -> dict[str, str]:
    return {entry.name: entry.version for entry in lock.wheels}


def published(shop: Shop) -> dict[str, Archive]:
    return {archive.filename: archive for archive in archives(RELEASE)}


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


# each fault, and the sentence that it ends in

PAGE = "/rocm/pytorch/whl-next/torch/"


@pytest.mark.parametrize(
    ("where", "kind", "says"),
    [
        ("/rocm/whl-next/torch/", Status(403), "the index 'stable' does not serve 'torch'; try again later"),
        ("/rocm/whl-next/torch/", Status(404), "the server answers HTTP 404 for http://127.0.0.1"),
        ("/rocm/whl-next/torch/", Status(401), "HTTP 401 for "),
        ("/rocm/whl-next/torch/", Status(407), "the proxy lets nobody ask "),
        ("/rocm/whl-next/torch/", Status(500), "whl-next/torch/ gives no answer (HTTP 500); check the network"),
        ("/rocm/whl-next/torch/", Status(429), "gives no answer (HTTP 429); check the network"),
        (PAGE, Cut(50), "gives no answer (the connection was cut); check the network"),
        (PAGE, Shortened(0), "the index page of 'torch' is empty"),
        (PAGE, Shortened(60), "the index page of 'torch' is cut off"),
    ],
)
def test_faults_of_a_page(shop: Shop, where: str, kind: Status | Cut | Shortened, says: str) -> None:
    shop.amd.fail(where, kind)
    assert says in shop.refused()


@pytest.mark.parametrize(
    ("file", "kind", "says"),
    [
        ("*/torch-2.13*cp313-linux*", Status(404), "cp313-linux_x86_64.whl, but it is not there; try again later"),
        ("*/torch-2.13*cp313-linux*", Status(403), "the index 'stable' lists torch-2.13.0+rocm10.0.0-cp313"),
        ("*/torch-2.13*cp313-linux*", Status(500), "gives no answer (HTTP 500)"),
        ("*/torch-2.13*cp313-linux*", Shortened(900), "cp313-linux_x86_64.whl cannot be read (File is not a zip file)"),
        ("*/rocm-10.0.0.tar.gz", Shortened(40), "rocm-10.0.0.tar.gz cannot be read ("),
        ("*/rocm_sdk_core-*", Cut(9000), "rocm_sdk_core-10.0.0-py3-none-linux_x86_64.whl could not be downloaded"),
    ],
)
def test_faults_of_a_file(shop: Shop, file: str, kind: Status | Cut | Shortened, says: str) -> None:
    # the parts that metadata is read from still come
    shop.amd.fail(file, kind, skip=2 if isinstance(kind, Cut) else 0)
    assert says in shop.refused()


def test_what_passes_is_waited_for(shop: Shop) -> None:
    shop.amd.fail("/rocm/whl-next/torch/", Status(429, "7"), times=1)
    shop.amd.fail("/rocm/whl-next/rocm/", Status(503), times=3)
    shop.amd.fail("*/rocm_sdk_core-*", Cut(100_000), times=1, skip=2)
    assert versions(shop.resolve()) == WHOLE
    assert shop.waits[0] == 7.0
    assert len(shop.waits) == 5
    resumed = [asked.range for asked in shop.amd.asked if "rocm_sdk_core" in asked.path and asked.sent > 100_000]
    assert resumed == ["bytes=100000-"]


def test_a_file_that_changes_while_its_metadata_is_read(shop: Shop) -> None:
    shop.amd.fail("*/torch-2.13*cp313-linux*", Altered(), skip=1)
    assert "cp313-linux_x86_64.whl changed while it was read; try again" in shop.refused()


def test_a_status_means_absent_only_where_the_channel_says_so(shop: Shop) -> None:
    assert "the server answers HTTP 403 for " in shop.refused(absent=(404,), target="gfx1201")


# pages as other indexes have them


class Pages(Tree):
    """An index of given pages and files at /simple."""

    def __init__(self, pages: dict[str, Answer]) -> None:
        super().__init__()
        self.pages = pages

    def answer(self, path: str, query: str = "") -> Answer:
        return self.pages.get(path, Answer(404))


def listed(*archives: Archive, project: str = "torch", **attributes: str) -> dict[str, Answer]:
    """A page with hashes, and its files."""
    rows = "".join(
        f'<a href="{quote(archive.filename)}#sha256={archive.sha256}"'
        + "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
        + f">{archive.filename}</a>"
        for archive in archives
    )
    pages = {f"/simple/{project}/": Answer(200, f"<html>{rows}</html>".encode(), {"Content-Type": "text/html"})}
    return pages | {f"/simple/{project}/{archive.filename}": Answer(200, archive.content) for archive in archives}


def from_pages(shop: Shop, pages: dict[str, Answer], *requirements: str, **options: object) -> WheelSetLock:
    shop.amd.tree = Pages(pages)
    return shop.resolve(
        *(requirements or ("torch",)),
        index=f"{shop.amd.url}/simple",
        absent=(404,),
        **options,  # type: ignore[arg-type]
    )


def refused_pages(shop: Shop, pages: dict[str, Answer], *requirements: str) -> str:
    with pytest.raises(StrixError) as caught:
        from_pages(shop, pages, *requirements)
    assert "\n" not in str(caught.value)
    return str(caught.value)


TINY = wheel("torch", "1.0", {"torch/__init__.py": "x" * 90000}, tag="py3-none-any", requires=["triton==1; extra=='x'"])


def test_hashes_of_the_index_are_taken(shop: Shop) -> None:
    [entry] = from_pages(shop, listed(TINY)).wheels
    assert (entry.sha256, entry.size) == (TINY.sha256, TINY.size)
    assert entry.url == f"{shop.amd.url}/simple/torch/{TINY.filename}"
    assert shop.told == []
    assert not (shop.cache / "archives").exists()


def test_a_hash_that_changes_is_not_taken_silently(shop: Shop) -> None:
    lock = from_pages(shop, listed(TINY))
    other = replace(TINY, content=TINY.content + b"\0")
    with pytest.raises(LockError, match=f"sha256 {other.sha256} instead of sha256 {TINY.sha256}"):
        from_pages(shop, listed(other), previous=lock, upgrade=())


def test_json_with_sizes_and_metadata_beside_the_files(shop: Shop) -> None:
    text = metadata("torch", "1.0", ["rocm-x==2"])
    entry = {
        "filename": TINY.filename,
        "url": TINY.filename,
        "hashes": {"sha256": TINY.sha256},
        "size": TINY.size,
        "core-metadata": {"sha256": hashlib.sha256(text).hexdigest()},
    }
    body = json.dumps({"meta": {"api-version": "1.1"}, "files": [entry]}).encode()
    pages = {
        **listed(TINY),
        **listed(wheel("rocm-x", "2", {"x.py": ""}, tag="py3-none-any"), project="rocm-x"),
        "/simple/torch/": Answer(200, body, {"Content-Type": "application/vnd.pypi.simple.v1+json"}),
        f"/simple/torch/{TINY.filename}.metadata": Answer(200, text),
    }
    assert versions(from_pages(shop, pages)) == {"rocm-x": "2", "torch": "1.0"}
    # the metadata beside it was enough
    assert [asked.range for asked in shop.amd.asked if asked.path.endswith(TINY.filename)] == ["bytes=0-0"]
    pages[f"/simple/torch/{TINY.filename}.metadata"] = Answer(200, text + b"\n")
    assert "the metadata beside torch-1.0-py3-none-any.whl has the sha256 " in refused_pages(shop, pages)
    del pages[f"/simple/torch/{TINY.filename}.metadata"]
    assert versions(from_pages(shop, pages)) == {"torch": "1.0"}
    body = json.dumps({"files": [entry | {"size": 5}]}).encode()
    pages["/simple/torch/"] = Answer(200, body, {"Content-Type": "application/json"})
    assert f"has {TINY.size} bytes, and the index 'stable' says 5" in refused_pages(shop, pages)


def test_an_empty_wheel_is_seen_behind_the_metadata_beside_it(shop: Shop) -> None:
    empty = wheel("torch", "1.0", {}, tag="py3-none-any")
    pages = listed(empty, data_core_metadata="true")
    pages[f"/simple/torch/{empty.filename}.metadata"] = Answer(200, metadata("torch", "1.0"))
    assert "torch-1.0-py3-none-any.whl is an empty placeholder: it installs nothing" in refused_pages(shop, pages)


def test_a_file_under_a_wrong_name(shop: Shop) -> None:
    other = replace(wheel("triton", "3.0", {"x.py": ""}, tag="py3-none-any"), filename="torch-1.0-py3-none-any.whl")
    assert "torch-1.0-py3-none-any.whl cannot be read (it has no METADATA of its own)" in refused_pages(
        shop, listed(other)
    )
    older = replace(wheel("torch", "0.9", {"x.py": ""}, tag="py3-none-any"), filename="torch-1.0-py3-none-any.whl")
    assert "torch-1.0-py3-none-any.whl calls itself 'torch 0.9'; take another version" in refused_pages(
        shop, listed(older)
    )
    assert "the index page of 'torch' lists files of other projects (triton-3.0-py3-none-any.whl)" in refused_pages(
        shop, listed(wheel("triton", "3.0", {}, tag="py3-none-any"))
    )


def test_withdrawn_files(shop: Shop) -> None:
    assert "'torch' 1.0 was withdrawn by its makers" in refused_pages(shop, listed(TINY, data_yanked="broken"))


def test_a_link_to_an_unsafe_place(shop: Shop) -> None:
    body = f"<a href='http://files.example/{TINY.filename}'>x</a>".encode()
    pages = {"/simple/torch/": Answer(200, body, {"Content-Type": "text/html"})}
    assert "its URL begins with https:// and holds no password" in refused_pages(shop, pages)
    pages = {"/simple/torch/": Answer(302, headers={"Location": "http://files.example/torch/"})}
    assert "/simple/torch/ redirects to a place that is not safe; check the URL" in refused_pages(shop, pages)
    for place in ("/simple/torch/", "file:///etc/passwd"):
        pages = {"/simple/torch/": Answer(302, headers={"Location": place})}
        assert "/simple/torch/ redirects in a circle, or to a place that is not safe" in refused_pages(shop, pages)


def test_a_page_that_never_ends(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"<a href='x'>" + b" " * (33 << 20)
    pages = {"/simple/torch/": Answer(200, body, {"Content-Type": "text/html"})}
    assert "/simple/torch/ is longer than 32 MB, which no page is" in refused_pages(shop, pages)


def test_a_requirement_that_is_none_or_from_elsewhere(shop: Shop) -> None:
    bad = wheel("torch", "1.0", {"x.py": ""}, tag="py3-none-any", requires=["rocm =< 2"])
    assert "torch-1.0-py3-none-any.whl needs 'rocm =< 2', which is no requirement" in refused_pages(shop, listed(bad))
    away = wheel("torch", "1.0", {"x.py": ""}, tag="py3-none-any", requires=["rocm @ https://x.example/r.whl"])
    assert "'rocm' is wanted from https://x.example/r.whl" in refused_pages(shop, listed(away))


def test_markers_are_those_of_the_image(shop: Shop) -> None:
    needs = [
        "rocm-a; sys_platform == 'win32'",
        "rocm-b; python_version < '3.13'",
        "rocm-c; platform_machine != 'x86_64'",
    ]
    one = wheel("torch", "1.0", {"x.py": ""}, tag="py3-none-any", requires=needs)
    assert versions(from_pages(shop, listed(one), "torch", "rocm-d; os_name == 'nt'")) == {"torch": "1.0"}


def test_a_source_archive_of_the_old_kind(shop: Shop) -> None:
    """PKG-INFO without requirements, and setuptools' own list beside it."""
    egg = "src/rocm.egg-info/requires.txt"
    text = "rocm-core==1\n\n[libs:python_version > '3']\nrocm-libs==1\n\n[:os_name == 'nt']\nrocm-win\n\n[dev]\nx\n"
    old = sdist("rocm", "1", {egg: text})
    parts = {name: wheel(name, "1", {"x.py": ""}, tag="py3-none-any") for name in ("rocm-core", "rocm-libs")}
    pages = listed(old, project="rocm")
    for name, part in parts.items():
        pages |= listed(part, project=name)
    assert versions(from_pages(shop, pages, "rocm")) == {"rocm": "1", "rocm-core": "1"}
    assert versions(from_pages(shop, pages, "rocm[libs]")) == {"rocm": "1", "rocm-core": "1", "rocm-libs": "1"}


def test_a_source_archive_without_metadata(shop: Shop) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("rocm-1/setup.py"))
    bare = Archive("rocm", "1", "rocm-1.tar.gz", buffer.getvalue())
    assert "rocm-1.tar.gz cannot be read (it has no PKG-INFO)" in refused_pages(
        shop, listed(bare, project="rocm"), "rocm"
    )


def test_a_failed_download_leaves_nothing(shop: Shop) -> None:
    shop.amd.fail("*/rocm_sdk_core-*", Cut(1000), skip=2)
    with pytest.raises(FetchFailed):
        shop.resolve()
    assert [path.name for path in (shop.cache / "archives").iterdir() if path.name.startswith(".")] == []
