"""The Python part of a vendored folder: chosen files and index pages, which uv itself reads here."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from strix_finetune import mirrors
from strix_finetune.errors import FetchFailed, LockError
from strix_finetune.indexes import Indexes
from strix_finetune.lockmodel import AptLock, Lock, PipLock, WheelLock, WheelSetLock
from strix_finetune.netconf import NetSettings
from strix_finetune.schema import Index
from strix_finetune.vendor import wheels
from strix_finetune.vendor.manifest import Entry
from tests.fileserver import served

FILES = {
    "demo": (
        "demo-1.0-cp314-cp314-manylinux_2_28_x86_64.whl",
        "demo-1.0-cp314-cp314-manylinux_2_99_x86_64.whl",
        "demo-1.0-cp39-abi3-manylinux_2_17_x86_64.whl",
        "demo-1.0-cp314-cp314-win_amd64.whl",
    ),
    "plain-tool": ("plain_tool-2.0+local.1-py3-none-any.whl",),
    "old": ("old-1-cp312-cp312-manylinux_2_17_x86_64.whl",),
}


def wheel(path: Path) -> Path:
    """A wheel that has nothing but its metadata."""
    name, version = path.name.split("-")[:2]
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as out:
        out.writestr(
            f"{name}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        out.writestr(f"{name}-{version}.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {path.name}\n")
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `vendor` lays it out, pages and all."""
    root = tmp_path_factory.mktemp("vendored")
    entries = []
    for project, names in FILES.items():
        for name in names:
            path = wheel(root / f"wheels/python/{project}/{name}")
            entries.append(Entry(f"wheels/python/{project}/{name}", sha256(path), path.stat().st_size))
    for name, content in wheels.pages(entries).items():
        (root / name).write_bytes(content)
    return root


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """The folder on a plain web server; yields the URL of the index."""
    with served(folder) as root:
        yield f"{root}/wheels/python"


def locked(folder: Path, *projects: str, python: str = "3.14") -> Lock:
    lines = []
    for project in projects:
        hashes = " ".join(
            f"--hash=sha256:{sha256(folder / 'wheels/python' / project / name)}" for name in FILES[project]
        )
        lines.append(f"{project}=={FILES[project][0].split('-')[1]} {hashes}\n")
    return Lock("debian", "cpu", AptLock("sid", {}), pip={"set": PipLock(python, "".join(lines), "")})


def settings(url: str) -> NetSettings:
    return NetSettings(indexes=Indexes(default=url))


def test_of_each_version_the_file_that_fits_best(folder: Path, url: str) -> None:
    lock = locked(folder, "demo", "plain-tool")
    found = {entry.path: entry for entry in wheels.python_entries(lock, "2.43-1", settings(url))}
    best = f"wheels/python/demo/{FILES['demo'][0]}"
    plain = f"wheels/python/plain-tool/{FILES['plain-tool'][0]}"
    assert set(found) == {best, plain}
    assert found[best].sha256 == sha256(folder / best)
    assert found[best].source == f"{url}/demo/{FILES['demo'][0]}"
    # a sign with a meaning in URLs
    assert found[plain].source == f"{url}/plain-tool/plain_tool-2.0%2Blocal.1-py3-none-any.whl"


def test_an_older_system_gets_another_file(folder: Path, url: str) -> None:
    found = list(wheels.python_entries(locked(folder, "demo"), "2.17", settings(url)))
    assert [entry.path.rpartition("/")[2] for entry in found] == [FILES["demo"][2]]


def test_a_folder_of_wheels_will_do(folder: Path) -> None:
    local = NetSettings(indexes=Indexes(no_index=True), wheel_folders=(folder / "wheels/python/demo",))
    [entry] = wheels.python_entries(locked(folder, "demo"), "2.43", local)
    assert entry.path == f"wheels/python/demo/{FILES['demo'][0]}"
    assert entry.source == (folder / "wheels/python/demo" / FILES["demo"][0]).as_uri()


def test_what_does_not_fit_or_is_gone(folder: Path, url: str) -> None:
    with pytest.raises((LockError, FetchFailed), match="old"):
        list(wheels.python_entries(locked(folder, "old"), "2.43", settings(url)))
    other = locked(folder, "demo")
    text = other.pip["set"].text.replace("demo==1.0", "demo==1.1")
    with pytest.raises(LockError, match="demo"):
        list(
            wheels.python_entries(
                Lock("debian", "cpu", AptLock("sid", {}), pip={"set": PipLock("3.14", text, "")}), "2.43", settings(url)
            )
        )


INDEX = Index(url="https://index.example/v4")


@pytest.mark.parametrize(
    ("url", "path", "link"),
    [
        ("https://index.example/v4/torch/torch-2.13.0%2Brocm10-cp313-cp313-linux_x86_64.whl", "torch/", ""),
        # its files are not where its pages are
        ("https://index.example/v4/torch-2.13.0%2Brocm10-cp313-cp313-linux_x86_64.whl", "", "../"),
        ("https://files.example/x/torch-2.13.0%2Brocm10-cp313-cp313-linux_x86_64.whl", "torch/", ""),
    ],
)
def test_the_files_of_a_channels_index_are_where_a_mirror_of_it_has_them(url: str, path: str, link: str) -> None:
    wheel = WheelLock("torch", "2.13.0+rocm10", url, "a" * 64)
    held = WheelSetLock("3.13", "rocm", "", "", (wheel,))
    lock = Lock("amd", "gfx1151", AptLock("trixie", {}), wheels={"torch": held})
    [entry] = wheels.channel_entries(lock, {"rocm": INDEX}, NetSettings())
    file = "torch-2.13.0+rocm10-cp313-cp313-linux_x86_64.whl"
    assert entry == Entry(f"wheels/rocm/{path}{file}", "a" * 64, 0, url)
    made = wheels.pages([entry])
    assert set(made) == {"wheels/rocm/index.html", "wheels/rocm/torch/index.html"}
    page = made["wheels/rocm/torch/index.html"].decode()
    assert f'href="{link}torch-2.13.0%2Brocm10-cp313-cp313-linux_x86_64.whl#sha256={"a" * 64}"' in page
    # what STRIX_INDEX_ROCM=http://…/wheels/rocm makes of the locked address
    assert mirrors.address(wheel, INDEX, "http://127.0.0.1/wheels/rocm") == f"http://127.0.0.1/{quote(entry.path)}"


def test_a_mirror_of_a_channels_index_is_asked_instead() -> None:
    wheel = WheelLock("torch", "2.13.0", "https://index.example/v4/torch/torch-2.13.0-py3-none-any.whl", "a" * 64)
    lock = Lock(
        "amd",
        "gfx1151",
        AptLock("trixie", {}),
        wheels={"torch": WheelSetLock("3.13", "rocm", "", "", (wheel,))},
    )
    settings = NetSettings(index_urls={"STRIX_INDEX_ROCM": "https://mirror.example/rocm"})
    [entry] = wheels.channel_entries(lock, {"rocm": INDEX}, settings)
    assert entry.source == "https://mirror.example/rocm/torch/torch-2.13.0-py3-none-any.whl"


def test_a_password_goes_to_its_own_server_alone() -> None:
    found = NetSettings(
        indexes=Indexes(default="https://me:p%40ss@index.example/simple", extra=("x=https://o.example",))
    )
    assert wheels.credentials("https://index.example/files/a.whl", found) == {"Authorization": "Basic bWU6cEBzcw=="}
    for url in ("https://files.example/a.whl", "http://index.example/a.whl", "https://index.example:8443/a.whl"):
        assert wheels.credentials(url, found) == {}
