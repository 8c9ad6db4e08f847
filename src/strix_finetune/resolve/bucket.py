"""Folders of files without an index: S3 buckets, whose listings come in pages, and plain HTML listings.

ROCm's tarballs lie so. A bucket tells 1,000 keys at a time, and whoever takes the last one of the first page for the
newest is wrong: a listing is read whole here, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote, unquote, urljoin, urlsplit
from xml.etree import ElementTree

from packaging.version import InvalidVersion, Version

from strix_finetune import web
from strix_finetune.errors import FetchFailed
from strix_finetune.resolve.browser import Browser, Page

# 1,000 keys each; TheRock's largest bucket has a few ten thousand
_MOST_PAGES = 500
_TARBALL = re.compile(r"therock-dist-linux-(?P<family>[A-Za-z0-9-]+?)-(?P<version>\d[0-9A-Za-z.]*)\.tar\.gz")


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: its name below the folder, its URL, and its size in bytes (0: the listing does not say)."""

    name: str
    url: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Tarball:
    """A tarball of ROCm for a family of targets ("gfx1151", "gfx110X-all")."""

    family: str
    version: Version
    entry: Entry


def list_folder(url: str, browser: Browser) -> tuple[Entry, ...]:
    """All files directly in the folder `url`. Raises FetchFailed for a listing that is none, empty, or cut short."""
    folder = url if url.endswith("/") else f"{url}/"
    parts = urlsplit(folder)
    root = f"{parts.scheme}://{parts.netloc}/"
    bucket, prefix = _bucket(parts.path, parts.hostname or "")
    page = browser.page(_query(root + bucket, prefix, ""), absent=(400, 403, 404))
    if page is not None and b"<ListBucketResult" in page.body[:2000]:
        found = tuple(_keys(page, root + bucket, prefix, browser))
    else:
        page = browser.page(folder)
        found = tuple(_anchors(page)) if page else ()
    if not found:
        raise FetchFailed(f"the folder {web.place(folder)} lists no files", cure="check the URL")
    return found


def tarballs(url: str, browser: Browser) -> tuple[Tarball, ...]:
    """The tarballs of ROCm in a folder, the oldest first."""
    found = [tarball for entry in list_folder(url, browser) if (tarball := as_tarball(entry))]
    return tuple(sorted(found, key=lambda tarball: (tarball.version, tarball.family)))


def as_tarball(entry: Entry) -> Tarball | None:
    """What the name of a tarball says; None for another file."""
    match = _TARBALL.fullmatch(entry.name)
    try:
        return Tarball(match["family"], Version(match["version"]), entry) if match else None
    except InvalidVersion:
        return None


def _bucket(path: str, host: str) -> tuple[str, str]:
    """The bucket in a path, where the host does not name it, and the prefix of the keys."""
    inner = unquote(path).lstrip("/")
    if re.search(r"(?:^|\.)s3[.-][a-z0-9.-]*amazonaws\.com$", host) and not host.startswith("s3"):
        return "", inner
    bucket, _, prefix = inner.partition("/")
    return (f"{bucket}/" if bucket else ""), prefix


def _query(bucket: str, prefix: str, token: str) -> str:
    more = f"&continuation-token={quote(token, safe='')}" if token else ""
    return f"{bucket}?list-type=2&delimiter=%2F&prefix={quote(prefix, safe='')}{more}"


def _keys(page: Page, bucket: str, prefix: str, browser: Browser) -> Iterator[Entry]:
    """Every key of the listing, page after page."""
    where = web.place(bucket)
    seen: set[str] = set()
    for _ in range(_MOST_PAGES):
        root = _parse(page, where)
        for row in root.iterfind("{*}Contents"):
            key, size = row.findtext("{*}Key", ""), row.findtext("{*}Size", "")
            name = key.removeprefix(prefix)
            if name and "/" not in name:
                yield Entry(name, bucket + quote(key), int(size) if size.isdigit() else 0)
        if root.findtext("{*}IsTruncated", "false").strip().lower() != "true":
            return
        token = root.findtext("{*}NextContinuationToken", "")
        if not token or token in seen:
            raise FetchFailed(
                f"the listing of {where} is cut short, and does not say how it goes on",
                cure="try again later: the newest file may be missing from what came",
            )
        seen.add(token)
        following = browser.page(_query(bucket, prefix, token))
        if following is None:
            break
        page = following
    raise FetchFailed(f"the listing of {where} has no end", cure="check the URL")


def _parse(page: Page, where: str) -> ElementTree.Element:
    try:
        # a document type could define entities that grow without bound
        if b"<!DOCTYPE" in page.body or b"<!ENTITY" in page.body:
            raise ElementTree.ParseError("it has a document type")
        root = ElementTree.fromstring(page.body)
    except ElementTree.ParseError as error:
        raise FetchFailed(f"the listing of {where} cannot be read ({error})", cure="try again later") from None
    if not root.tag.endswith("ListBucketResult"):
        raise FetchFailed(f"{where} sends no listing of a bucket", cure="check the URL")
    return root


def _anchors(page: Page) -> Iterator[Entry]:
    from strix_finetune.resolve.page import Reader

    reader = Reader()
    reader.feed(page.body.decode("utf-8", "replace"))
    reader.close()
    base = urljoin(page.url, reader.base)
    seen: set[str] = set()
    for values in reader.anchors:
        try:
            url = urljoin(base, values["href"].strip()).partition("#")[0].partition("?")[0]
        except ValueError:
            continue
        folder, _, name = url.rpartition("/")
        if name and folder == page.url.partition("?")[0].rpartition("/")[0] and name not in seen:
            seen.add(name)
            yield Entry(unquote(name), url)
