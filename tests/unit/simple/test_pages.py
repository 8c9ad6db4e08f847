"""Pages as other indexes have them: hashes, sizes, metadata beside the files, and what must not be taken from them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import replace
from urllib.parse import quote

import pytest

from strix_finetune.errors import FetchFailed, LockError, StrixError
from strix_finetune.lockmodel import WheelSetLock
from tests.standin.faults import Cut
from tests.standin.tree import Answer, Tree
from tests.standin.wheels import Archive, metadata, sdist, wheel
from tests.unit.simple.shop import Shop, versions


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
