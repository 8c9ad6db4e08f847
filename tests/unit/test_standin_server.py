"""The stand-in's server: AMD's layout, what it answers, every fault, and that pip and uv can install from it."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote, urljoin
from urllib.request import Request, urlopen

import pytest

from strix_finetune.netconf import uv_program
from tests.standin.amd import RELEASE, archives
from tests.standin.faults import Altered, Cut, Shortened, Slow, Status
from tests.standin.server import Asked, Standin, paths
from tests.standin.tree import Tree

TORCH = "torch-2.13.0+rocm10.0.0-cp313-cp313-linux_x86_64.whl"
CORE = "rocm_sdk_core-10.0.0-py3-none-linux_x86_64.whl"
TARBALLS = {f"therock-dist-linux-gfx1151-7.10.0a202510{day:02d}.tar.gz": bytes([day]) * day for day in range(1, 32)}


@pytest.fixture(scope="module")
def serving() -> Iterator[Standin]:
    packages = archives(RELEASE, ["gfx1151", "gfx942"])
    with Standin(Tree(packages, legacy=packages, tarballs=TARBALLS, page=10)) as standin:
        yield standin


@pytest.fixture
def amd(serving: Standin) -> Standin:
    """One server for all tests; each begins without faults and memories."""
    serving.heal()
    return serving


def get(url: str, **headers: str) -> tuple[int, bytes, str]:
    """Status, body, and the place that redirects led to."""
    try:
        with urlopen(Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read(), answer.url
    except HTTPError as error:
        return error.code, error.read(), error.url or ""


def content(amd: Standin, name: str) -> bytes:
    return amd.tree.answer(amd.tree.path(name)).body


def test_the_aggregate_index_leads_to_the_owner(amd: Standin) -> None:
    status, page, place = get(f"{amd.index}/torch/")
    assert (status, place) == (200, f"{amd.url}/rocm/pytorch/whl-next/torch/")
    assert b'<a href="torch-2.13.0%2Brocm10.0.0-cp313-cp313-linux_x86_64.whl">' in page
    assert (b"sha256" in page, b"metadata" in page) == (False, False)
    _, wheel, place = get(f"{amd.index}/torch/{quote(TORCH)}")
    assert (wheel, place) == (content(amd, TORCH), f"{amd.url}/rocm/pytorch/whl-next/torch/{quote(TORCH)}")
    assert get(f"{amd.index}/rocm/")[2] == f"{amd.url}/rocm/core/whl-next/rocm/"
    assert paths(amd.asked)[:2] == ["/rocm/whl-next/torch/", "/rocm/pytorch/whl-next/torch/"]
    assert [item.status for item in amd.asked[:2]] == [302, 200]
    assert amd.files() == [TORCH]


def test_a_wheel_whose_name_has_a_plus_is_found_either_way(amd: Standin) -> None:
    assert get(f"{amd.url}/rocm/pytorch/whl-next/torch/{TORCH}")[1] == content(amd, TORCH)


@pytest.mark.parametrize("path", ["torch", "numpy/", "torch/no.whl", "TORCH/", "../core/whl-next/torch/"])
def test_what_is_not_served_is_forbidden(amd: Standin, path: str) -> None:
    status, body, _ = get(f"{amd.index}/{path}")
    assert (status, b"AccessDenied" in body) == (403, True)


def test_json_is_not_offered(amd: Standin) -> None:
    request = Request(f"{amd.index}/torch/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urlopen(request, timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/html"


def test_the_root_pages_list_the_projects(amd: Standin) -> None:
    assert b'<a href="amd-torch-device-gfx115x/">' in get(f"{amd.index}/")[1]
    assert b"rocm-sdk-core" not in get(f"{amd.url}/rocm/pytorch/whl-next/")[1]
    assert b"rocm-sdk-core" in get(f"{amd.url}/rocm/core/whl-next/")[1]


def test_the_older_index_is_one_flat_folder(amd: Standin) -> None:
    status, page, _ = get(f"{amd.legacy}/torch/")
    assert status == 200
    href = page.split(b'href="')[1].split(b'"')[0].decode()
    assert href.startswith("../torch-2.13.0%2Brocm10.0.0-")
    assert get(urljoin(f"{amd.legacy}/torch/", href))[0] == 200
    assert get(f"{amd.legacy}/nothing/")[0] == get(f"{amd.legacy}/nothing.whl")[0] == 403


@pytest.mark.parametrize(
    ("asked", "first", "size"), [("bytes=0-99", 0, 100), ("bytes=100-", 100, None), ("bytes=-40", -40, 40)]
)
def test_ranges(amd: Standin, asked: str, first: int, size: int | None) -> None:
    whole = content(amd, CORE)
    status, body, _ = get(f"{amd.index}/rocm-sdk-core/{CORE}", Range=asked)
    assert (status, body) == (206, whole[first:][:size])
    assert amd.asked[-1] == Asked("GET", f"/rocm/core/whl-next/rocm-sdk-core/{CORE}", 206, asked, "", len(body))


def test_a_range_behind_the_end(amd: Standin) -> None:
    assert get(f"{amd.index}/rocm-sdk-core/{CORE}", Range="bytes=9999999-")[0] == 416
    assert get(f"{amd.index}/rocm-sdk-core/{CORE}", Range="lines=1-2")[0] == 200


def test_a_part_of_another_version_is_not_sent(amd: Standin) -> None:
    url = f"{amd.url}/rocm/core/whl-next/rocm-sdk-core/{CORE}"
    with urlopen(url, timeout=10) as answer:
        tag = answer.headers["ETag"]
    assert get(url, **{"Range": "bytes=5-9", "If-Range": tag})[0] == 206
    assert get(url, **{"Range": "bytes=5-9", "If-Range": '"other"'})[0] == 200
    amd.fail(f"*/{CORE}", Altered(), times=1)
    assert get(url, **{"Range": "bytes=5-9", "If-Range": tag})[0] == 200


def test_head_tells_the_size(amd: Standin) -> None:
    connection = http.client.HTTPConnection(amd.url.removeprefix("http://"))
    connection.request("HEAD", f"/rocm/core/whl-next/rocm-sdk-core/{CORE}")
    answer = connection.getresponse()
    assert (answer.read(), answer.headers["Content-Length"]) == (b"", str(len(content(amd, CORE))))
    connection.close()
    assert amd.files() == []


@pytest.mark.parametrize(("version", "token"), [("list-type=2&", "continuation-token"), ("", "marker")])
def test_a_bucket_lists_page_by_page(amd: Standin, version: str, token: str) -> None:
    space = "{http://s3.amazonaws.com/doc/2006-03-01/}"
    keys: list[str] = []
    following, pages = "", 0
    while True:
        more = f"&{token}={quote(following)}" if following else ""
        page = ET.fromstring(get(f"{amd.bucket}?{version}prefix=therock-dist-linux-gfx1151{more}")[1])
        pages += 1
        keys += [entry.text or "" for entry in page.iter(f"{space}Key")]
        if page.findtext(f"{space}IsTruncated") != "true":
            break
        following = page.findtext(f"{space}{'NextContinuationToken' if version else 'NextMarker'}") or ""
    assert (keys, pages) == (sorted(TARBALLS), 4)
    assert get(f"{amd.bucket}/{keys[-1]}")[1] == TARBALLS[keys[-1]]


def test_a_status_for_a_while(amd: Standin) -> None:
    fault = amd.fail("*/rocm-sdk-core/", Status(429, retry_after="2"), times=2, skip=1)
    url = f"{amd.url}/rocm/core/whl-next/rocm-sdk-core/"
    assert [get(url)[0] for _ in range(5)] == [200, 429, 429, 200, 200]
    assert fault.hits == 2
    amd.fail("*", Status(503))
    with pytest.raises(HTTPError) as caught:
        urlopen(url, timeout=10)
    assert caught.value.headers["Retry-After"] is None


def test_a_cut_connection(amd: Standin) -> None:
    amd.fail(f"*/{CORE}", Cut(after=5000), times=1)
    url = f"{amd.url}/rocm/core/whl-next/rocm-sdk-core/{CORE}"
    with pytest.raises(http.client.IncompleteRead) as caught, urlopen(url, timeout=10) as answer:
        answer.read()
    assert len(caught.value.partial) == 5000
    assert get(url, Range="bytes=5000-")[1] == content(amd, CORE)[5000:]


def test_slow_bytes(amd: Standin) -> None:
    amd.fail(f"*/{TORCH}", Slow(delay=0.05, piece=1024))
    pieces = -(-len(content(amd, TORCH)) // 1024)
    began = time.monotonic()
    assert get(f"{amd.index}/torch/{quote(TORCH)}")[1] == content(amd, TORCH)
    assert time.monotonic() - began >= 0.05 * pieces


def test_another_content_of_the_same_length(amd: Standin) -> None:
    amd.fail(f"*/{TORCH}", Altered(), times=1)
    url, right = f"{amd.url}/rocm/pytorch/whl-next/torch/{quote(TORCH)}", content(amd, TORCH)
    wrong = get(url)[1]
    assert (len(wrong), sha256(wrong).digest() == sha256(right).digest()) == (len(right), False)
    assert get(url)[1] == right


def test_half_of_a_page(amd: Standin) -> None:
    amd.fail("/rocm/pytorch/whl-next/torch/", Shortened(keep=120))
    status, page, _ = get(f"{amd.index}/torch/")
    assert (status, len(page), b"</html>" in page) == (200, 120, False)


def test_a_listed_file_that_is_gone(amd: Standin) -> None:
    amd.fail(f"*/{TORCH}", Status(404))
    assert quote(TORCH).encode() in get(f"{amd.index}/torch/")[1]
    assert get(f"{amd.url}/rocm/pytorch/whl-next/torch/{quote(TORCH)}")[0] == 404


def test_half_of_a_set() -> None:
    tree = Tree(archives(RELEASE, ["gfx1151"]))
    tree.withdraw("amd_torch_device_gfx1151-*")
    with Standin(tree) as amd:
        assert get(f"{amd.index}/amd-torch-device-gfx1151/")[0] == 403
        assert b"amd-torch-device-gfx1151" not in get(f"{amd.index}/")[1]
        assert get(f"{amd.index}/amd-torch-device-gfx115x/")[0] == 200


def test_many_at_once(amd: Standin) -> None:
    amd.fail(f"*/{CORE}", Slow(delay=0.02, piece=1 << 17))
    url, bodies = f"{amd.url}/rocm/core/whl-next/rocm-sdk-core/{CORE}", []
    threads = [threading.Thread(target=lambda: bodies.append(get(url)[1])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(bodies) == {content(amd, CORE)}
    assert len(bodies) == len(amd.asked) == 8


def test_the_server_ends_with_its_context() -> None:
    before = set(threading.enumerate())
    with Standin(Tree()) as amd:
        url = amd.url
        assert get(url)[0] == 403
    with pytest.raises(OSError):
        urlopen(url, timeout=2)
    assert not {thread for thread in threading.enumerate() if "serve_forever" in thread.name} - before


CHOSEN = ("torch==2.13.0+rocm10.0.0", "amd-torch-device-gfx1151==2.13.0+rocm10.0.0", "rocm-sdk-core==10.0.0")


def test_pip_can_install_from_it(amd: Standin, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "download", "--no-cache-dir"]
    where = ["--only-binary", ":all:", "--platform", "linux_x86_64", "--python-version", "3.13", "--no-deps"]
    subprocess.run([*command, *where, "-q", "--index-url", amd.index, "-d", tmp_path, *CHOSEN], check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == amd.files()
    assert TORCH in amd.files()


def test_uv_resolves_the_extra_of_a_target(amd: Standin, tmp_path: Path) -> None:
    """What it needs of elsewhere is left to others, as AMD's index refuses to speak of it."""
    others = ("filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "setuptools")
    (tmp_path / "overrides.txt").write_text("".join(f"{name}; python_version < '0'\n" for name in others))
    (tmp_path / "asked.txt").write_text("torch[device-gfx1151]==2.13.0+rocm10.0.0\n")
    # the source archive of `rocm` leaves its dependencies open until it is built, and that is not what is tested here
    (tmp_path / "uv.toml").write_text(
        '[[dependency-metadata]]\nname = "rocm"\nversion = "10.0.0"\nprovides-extra = ["libraries"]\nrequires-dist = '
        """["rocm-sdk-core==10.0.0", "rocm-sdk-libraries==10.0.0; extra == 'libraries'"]\n"""
    )
    command = [str(uv_program()), "pip", "compile", "-q", "--no-header", "--no-annotate", "--no-cache", "asked.txt"]
    where = ["--python-version", "3.13", "--python-platform", "x86_64-manylinux_2_40", "--default-index", amd.index]
    said = ["--overrides", "overrides.txt", "--config-file", "uv.toml"]
    done = subprocess.run([*command, *where, *said], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    named = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert named == [
        "amd-torch-device-gfx1151==2.13.0+rocm10.0.0",
        "amd-torch-device-gfx115x==2.13.0+rocm10.0.0",
        "rocm==10.0.0",
        "rocm-bootstrap==0.1.0",
        "rocm-sdk-core==10.0.0",
        "rocm-sdk-device-gfx1151==10.0.0",
        "rocm-sdk-libraries==10.0.0",
        "torch==2.13.0+rocm10.0.0",
        "triton==3.8.0+git4cff872c.rocm10.0.0",
    ]
