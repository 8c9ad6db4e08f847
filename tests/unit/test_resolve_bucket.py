"""Folders of tarballs: buckets that list in pages, and plain listings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strix_finetune.errors import FetchFailed
from strix_finetune.netconf import NetSettings
from strix_finetune.resolve.browser import Browser
from strix_finetune.resolve.bucket import Entry, _bucket, as_tarball, list_folder, tarballs
from tests.standin.faults import Cut, Shortened, Status
from tests.standin.server import Standin
from tests.standin.tree import Answer, Tree


def name(version: str, family: str = "gfx1151") -> str:
    return f"therock-dist-linux-{family}-{version}.tar.gz"


VERSIONS = [f"10.1.0a2026{month:02}{day:02}" for month in (7, 8) for day in range(1, 29)] + ["9.9.0", "10.0.0"]
KEYS = {name(version): b"x" * number for number, version in enumerate(VERSIONS)}
OTHERS = {name("10.2.0", "gfx110X-all"): b"y", "index.html": b"z", "old/" + name("11.0.0"): b"z"}


@pytest.fixture
def amd() -> Iterator[Standin]:
    with Standin(Tree(tarballs=KEYS | OTHERS, page=7)) as server:
        yield server


@pytest.fixture
def browser() -> Browser:
    return Browser(NetSettings(), sleep=lambda seconds: None)


def test_a_bucket_is_read_to_its_end(amd: Standin, browser: Browser) -> None:
    found = list_folder(amd.bucket, browser)
    assert {entry.name: entry.size for entry in found} == {
        key: len(content) for key, content in (KEYS | OTHERS).items() if "/" not in key
    }
    assert found[0].url == f"{amd.bucket}/{found[0].name}"
    assert len(amd.asked) == (len(KEYS | OTHERS) + 6) // 7


def test_the_newest_tarball_is_that_of_its_version_and_not_of_its_place(amd: Standin, browser: Browser) -> None:
    mine = [found for found in tarballs(amd.bucket, browser) if found.family == "gfx1151"]
    assert [str(found.version) for found in (mine[0], mine[1], mine[-1])] == ["9.9.0", "10.0.0", "10.1.0a20260828"]
    assert sorted(KEYS)[-1] == name("9.9.0")


def test_a_folder_below_a_bucket(amd: Standin, browser: Browser) -> None:
    assert list_folder(f"{amd.bucket}/old", browser) == (
        Entry(name("11.0.0"), f"{amd.bucket}/old/{name('11.0.0')}", 1),
    )


@pytest.mark.parametrize(
    ("kind", "skip", "says"),
    [
        (Cut(300), 1, "gives no answer (the connection was cut)"),
        (Status(500), 2, "gives no answer (HTTP 500)"),
        (Status(403), 3, "the server answers HTTP 403 for "),
        (Shortened(400), 1, "the listing of "),
    ],
)
def test_a_listing_that_breaks_off_is_no_listing(
    amd: Standin, browser: Browser, kind: Cut | Status | Shortened, skip: int, says: str
) -> None:
    amd.fail("/therock-nightly-tarball/*", kind, skip=skip)
    with pytest.raises(FetchFailed) as caught:
        list_folder(amd.bucket, browser)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


class Pages(Tree):
    """Answers with the given bodies, one request after the other, the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__()
        self.answers = list(answers)

    def answer(self, path: str, query: str = "") -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def xml(rest: str) -> Answer:
    body = f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{rest}</ListBucketResult>'
    return Answer(200, body.encode(), {"Content-Type": "application/xml"})


KEY = "<Contents><Key>a.tar.gz</Key><Size>no</Size></Contents>"


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([xml(f"{KEY}<IsTruncated>true</IsTruncated>")], "is cut short, and does not say how it goes on; try again"),
        (
            [xml(f"{KEY}<IsTruncated>true</IsTruncated><NextContinuationToken>a</NextContinuationToken>")],
            "is cut short, and does not say how it goes on",
        ),
        ([xml("<IsTruncated>false</IsTruncated>")], "lists no files; check the URL"),
        ([Answer(200, b"<ListBucketResult><Contents>", {})], "cannot be read ("),
        ([Answer(200, b"<!DOCTYPE x><ListBucketResult/>", {})], "cannot be read (it has a document type)"),
        ([Answer(200, b"<html><ListBucketResult/></html>", {})], "sends no listing of a bucket"),
        ([Answer(200, b"<html><a href='/login'>x</a></html>", {})], "lists no files; check the URL"),
        ([Answer(404)], "the server answers HTTP 404 for "),
    ],
)
def test_what_is_no_listing(amd: Standin, browser: Browser, answers: list[Answer], says: str) -> None:
    amd.tree = Pages(*answers)
    with pytest.raises(FetchFailed) as caught:
        list_folder(f"{amd.url}/tarball", browser)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plain_listing(amd: Standin, browser: Browser) -> None:
    rows = "<a href='../'>up</a><a href='a%2B1.tar.gz'>a</a><a href='a%2B1.tar.gz'>again</a><a href='http://['>x</a>"
    amd.tree = Pages(Answer(403), Answer(200, f"<html>{rows}<a href='/other/b.tar.gz'>b</a></html>".encode(), {}))
    assert list_folder(f"{amd.url}/rocm/tarball", browser) == (
        Entry("a+1.tar.gz", f"{amd.url}/rocm/tarball/a%2B1.tar.gz"),
    )


@pytest.mark.parametrize(
    ("path", "host", "found"),
    [
        ("/", "therock-nightly-tarball.s3.amazonaws.com", ("", "")),
        ("/v5/x/", "b.s3.us-east-2.amazonaws.com", ("", "v5/x/")),
        ("/bucket/v5/", "s3.us-east-2.amazonaws.com", ("bucket/", "v5/")),
        ("/rocm/tarball/", "repo.example", ("rocm/", "tarball/")),
        ("/", "repo.example", ("", "")),
    ],
)
def test_where_the_bucket_is(path: str, host: str, found: tuple[str, str]) -> None:
    assert _bucket(path, host) == found


@given(
    st.sampled_from(["gfx1151", "gfx110X-all", "gfx94X-dcgpu", "gfx90a", "multiarch"]),
    st.tuples(st.integers(1, 30), st.integers(0, 30), st.integers(0, 9)),
    st.sampled_from(["", "a20260823", "rc1"]),
)
def test_names_of_tarballs(family: str, numbers: tuple[int, int, int], end: str) -> None:
    version = ".".join(map(str, numbers)) + end
    found = as_tarball(Entry(name(version, family), "https://x.example/"))
    assert found is not None
    assert (found.family, str(found.version)) == (family, version)
    assert as_tarball(Entry(name(version, family) + ".sig", "https://x.example/")) is None
