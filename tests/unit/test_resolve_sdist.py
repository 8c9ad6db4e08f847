"""A source distribution by uv: found where the host's index is, checked, and one sentence for whatever is wrong."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from strix_finetune import archives, netconf
from strix_finetune.errors import InputError, StrixError
from strix_finetune.netconf import NetSettings
from strix_finetune.resolve.sdist import fetch_sdist
from strix_finetune.schema import Apt

FILE = "demo_tool-1.2.tar.gz"
URL = f"sdist:demo-tool==1.2/{FILE}"


def made() -> bytes:
    """Return a source distribution that says all about itself: nothing needs to be built to know it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, text in (
            ("PKG-INFO", "Metadata-Version: 2.2\nName: demo-tool\nVersion: 1.2\n"),
            (
                "pyproject.toml",
                '[build-system]\nrequires = ["never-there"]\n[project]\nname="demo-tool"\nversion="1.2"\n',
            ),
            ("tool.py", "print('hello')\n"),
        ):
            info = tarfile.TarInfo(f"demo_tool-1.2/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


CONTENT = made()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def links(tmp_path: Path) -> NetSettings:
    """A host whose files lie in a folder of its own."""
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / FILE).write_bytes(CONTENT)
    return netconf.collect({"UV_FIND_LINKS": str(folder), "UV_NO_INDEX": "1"}, home=tmp_path, root=tmp_path)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[NetSettings]:
    """A host with an index of its own."""
    page = tmp_path / "index" / "simple" / "demo-tool"
    page.mkdir(parents=True)
    (page / "index.html").write_text(f'<!doctype html><a href="../../{FILE}#sha256={SHA256}">{FILE}</a>')
    (tmp_path / "index" / FILE).write_bytes(CONTENT)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "index"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield netconf.collect(
        {"UV_DEFAULT_INDEX": f"http://127.0.0.1:{server.server_port}/simple/"}, home=tmp_path, root=tmp_path
    )
    server.shutdown()


def fetch(settings: NetSettings, folder: Path, url: str = URL, sha256: str = SHA256, size: int = len(CONTENT)) -> Path:
    return fetch_sdist(url, sha256, size, folder, settings)


def refused(settings: NetSettings, folder: Path, **wrong: str) -> str:
    with pytest.raises(StrixError) as caught:
        fetch(settings, folder, **wrong)  # type: ignore[arg-type]
    assert not folder.exists() or list(folder.iterdir()) == []
    return str(caught.value)


def test_from_a_folder_of_the_host(links: NetSettings, tmp_path: Path) -> None:
    path = fetch(links, tmp_path / "cache")
    assert (path.name, path.read_bytes()) == (SHA256, CONTENT)
    (tmp_path / "links" / FILE).unlink()
    assert fetch(links, tmp_path / "cache") == path  # nobody is asked for what is here


def test_from_an_index(index: NetSettings, tmp_path: Path) -> None:
    assert fetch(index, tmp_path / "cache").read_bytes() == CONTENT
    apt = Apt(suite="sid")
    again = archives.get(URL, SHA256, len(CONTENT), tmp_path / "other", index, apt)
    assert again == tmp_path / "other" / "archives" / SHA256


def test_what_the_index_does_not_have(index: NetSettings, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert "demo-tool 1.3" in refused(index, folder, url="sdist:demo-tool==1.3/demo_tool-1.3.tar.gz")
    text = refused(index, folder, url="sdist:demo-tool==1.2/demo-tool-1.2.tar.gz")
    assert (
        f"the package index has {FILE} of demo-tool 1.2 and no demo-tool-1.2.tar.gz; correct the archive's url" in text
    )


def test_another_file_than_the_definition_names(index: NetSettings, links: NetSettings, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    text = refused(index, folder, sha256="0" * 64)
    assert f"the package index has another {FILE} than the definition names: sha256 {SHA256}, not 000" in text
    assert "find out why" in refused(links, folder, sha256="0" * 64)


@pytest.mark.parametrize("url", ["sdist:demo", "sdist:demo==1", "sdist:demo==1/../x.tar.gz", "sdist:demo==1/x.whl"])
def test_what_is_no_source_distribution(links: NetSettings, tmp_path: Path, url: str) -> None:
    with pytest.raises(InputError, match=r"write it as sdist:NAME==VERSION/FILE\.tar\.gz"):
        fetch(links, tmp_path, url=url)
