"""Pages of package indexes: HTML and JSON, right, odd, and none at all."""

from __future__ import annotations

import contextlib
import html
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune.errors import FetchFailed
from strix_finetune.resolve.browser import Page
from strix_finetune.resolve.page import Link, links

AT = "https://index.example/rocm/pytorch/whl-next/torch/"
SHA = "0123456789abcdef" * 4
WHEEL = "torch-2.13.0+rocm10.0.0-cp313-cp313-linux_x86_64.whl"


def page(body: str | bytes, kind: str = "text/html") -> Page:
    return Page(AT, kind, body.encode() if isinstance(body, str) else body)


def one(body: str, kind: str = "text/html") -> Link:
    [link] = links(page(body, kind), "torch")
    return link


@pytest.mark.parametrize(
    ("href", "url"),
    [
        (quote(WHEEL), f"{AT}{quote(WHEEL)}"),
        (f"../{quote(WHEEL)}", f"https://index.example/rocm/pytorch/whl-next/{quote(WHEEL)}"),
        (f"/files/{WHEEL}", f"https://index.example/files/{WHEEL}"),
        (f"//other.example/{WHEEL}", f"https://other.example/{WHEEL}"),
        (f"https://files.example/a/{WHEEL}?sig=1", f"https://files.example/a/{WHEEL}?sig=1"),
        (f"  {WHEEL}\n", f"{AT}{WHEEL}"),
    ],
)
def test_where_a_link_leads(href: str, url: str) -> None:
    assert one(f"<a href='{href}'>x</a>") == Link(WHEEL, url)


def test_a_base_of_the_page() -> None:
    assert one(f"<base href='/b/'><a href='{WHEEL}'>x</a>").url == f"https://index.example/b/{WHEEL}"
    assert one(f"<base href='c/'><base href='/no/'><a href='{WHEEL}'>x</a>").url == f"{AT}c/{WHEEL}"


@pytest.mark.parametrize(
    ("fragment", "sha256"),
    [
        (f"#sha256={SHA}", SHA),
        (f"#sha256={SHA.upper()}", SHA),
        (f"#egg=torch&amp;sha256={SHA}", SHA),
        ("#md5=0123456789abcdef0123456789abcdef", ""),
        ("#sha256=00", ""),
        ("#", ""),
        ("", ""),
    ],
)
def test_the_hash_in_a_fragment(fragment: str, sha256: str) -> None:
    assert one(f'<a href="{WHEEL}{fragment}">x</a>') == Link(WHEEL, AT + WHEEL, sha256=sha256)


def test_what_an_anchor_says_of_its_file() -> None:
    said = one(
        f'<a href="{WHEEL}" data-requires-python="&gt;=3.10" data-yanked="" data-core-metadata="sha256={SHA}">x</a>'
    )
    assert (said.python, said.yanked, said.metadata, said.metadata_sha256) == (">=3.10", True, True, SHA)
    assert one(f'<a href="{WHEEL}" data-dist-info-metadata="true">x</a>').metadata
    assert not one(f'<a href="{WHEEL}" data-dist-info-metadata="false">x</a>').metadata
    assert not one(f'<a href="{WHEEL}">x</a>').metadata


def test_other_links_are_no_files() -> None:
    body = (
        f"<a>top</a> <a href='../'>up</a> <a href='http://['>x</a> <a href='{WHEEL}.sig'>x</a> <a href='{WHEEL}'>x</a>"
    )
    assert one(body).file == WHEEL


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        ("<!DOCTYPE html><html><body></body></html>", "text/html", "the index page of 'torch' is empty"),
        ('<html><a href="torch-1-py3-none-any.whl">x</a><a hr', "text/html", "the index page of 'torch' is cut off"),
        ("", "text/html", "the index page of 'torch' is empty"),
        ("Forbidden", "text/html", "is no index page of 'torch', it is not even HTML"),
        ("<form><a href='/login'>Log in</a></form>", "text/html", "none of its links is a file"),
        ("<ListBucketResult/>", "application/xml", "is no index page of 'torch' but application/xml"),
        (
            '<meta name="pypi:repository-version" content="2.0"><a href="t-1-py3-none-any.whl">x</a>',
            "text/html",
            "has version 2.0; update strix-finetune",
        ),
        ("{", "application/json", "its JSON is not what PEP 691 says"),
        ('{"files": 3}', "application/json", "its JSON is not what PEP 691 says"),
        ("[]", "application/json", "its JSON is not what PEP 691 says"),
        ('{"files": [{"filename": 5, "url": "x"}]}', "application/json", "its JSON is not what PEP 691 says"),
        ('{"meta": {"api-version": "2.1"}, "files": []}', "application/json", "has version 2.1"),
        ('{"files": []}', "application/json", "the index page of 'torch' is empty"),
    ],
)
def test_what_is_no_index_page(body: str, kind: str, says: str) -> None:
    with pytest.raises(FetchFailed) as caught:
        links(page(body, kind), "torch")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_json_says_the_same() -> None:
    entry = {
        "filename": WHEEL,
        "url": f"../{WHEEL}#x",
        "hashes": {"sha256": SHA.upper(), "md5": "0"},
        "size": 7,
        "requires-python": ">=3.10",
        "core-metadata": {"sha256": SHA},
        "yanked": "",
    }
    files = [entry, {"filename": "torch.exe", "url": "torch.exe"}]
    body = json.dumps({"meta": {"api-version": "1.1"}, "name": "torch", "files": files})
    assert one(body, "application/vnd.pypi.simple.v1+json") == Link(
        WHEEL,
        f"https://index.example/rocm/pytorch/whl-next/{WHEEL}",
        sha256=SHA,
        size=7,
        python=">=3.10",
        yanked=True,
        metadata=True,
        metadata_sha256=SHA,
    )
    bare = {"filename": WHEEL, "url": WHEEL, "hashes": {}, "yanked": False, "dist-info-metadata": False}
    assert one(json.dumps({"files": [bare]}), "application/json") == Link(WHEEL, AT + WHEEL)


_names = st.text(st.characters(codec="utf-8", exclude_characters="/\\"), min_size=1, max_size=40).map(
    lambda text: f"{text}-1.0.tar.gz"
)


@given(st.lists(st.tuples(_names, st.booleans(), st.booleans()), min_size=1, max_size=8))
def test_whatever_a_file_is_called_it_is_read_back(entries: list[tuple[str, bool, bool]]) -> None:
    """Percent escapes and character references, each alone and both: the name comes back as it was."""
    rows = []
    for name, hashed, yanked in entries:
        fragment = f"#sha256={SHA}" if hashed else ""
        rows.append(
            f'<a {"data-yanked " if yanked else ""}href="{html.escape(quote(name) + fragment)}">{html.escape(name)}</a>'
        )
    found = links(page("<html>" + "<br/>".join(rows) + "</html>"), "torch")
    assert [(link.file, bool(link.sha256), link.yanked) for link in found] == entries


@given(st.text(max_size=300), st.sampled_from(["text/html", "application/json"]))
def test_any_text_is_a_page_or_a_sentence(text: str, kind: str) -> None:
    found: tuple[Link, ...] = ()
    with contextlib.suppress(FetchFailed):
        found = links(page(text, kind), "torch")
    assert all(link.file.endswith((".whl", ".tar.gz", ".zip")) for link in found)
