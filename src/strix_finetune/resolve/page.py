"""The files that one project's page of a package index lists: HTML as PEP 503 has it, JSON as PEP 691 has it.

Pure: a page in, links out. What a page must have to be one is checked, because a login page or the front page of a
mirror is answered with status 200 as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from strix_finetune import web
from strix_finetune.errors import FetchFailed
from strix_finetune.resolve.browser import Page

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html; q=0.5, text/html; q=0.3, */*; q=0.1"
_JSON = ("application/vnd.pypi.simple.v1+json", "application/vnd.pypi.simple.latest+json", "application/json")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Link:
    """One file. `url` is absolute and has no fragment. `sha256` empty and `size` 0 (bytes) where the page has none.

    `metadata`: the METADATA file lies beside it (PEP 658); `metadata_sha256` where the page says it.
    """

    file: str
    url: str
    sha256: str = ""
    size: int = 0
    python: str = ""
    yanked: bool = False
    metadata: bool = False
    metadata_sha256: str = ""


def links(page: Page, project: str) -> tuple[Link, ...]:
    """The files on the page of `project`. Raises FetchFailed for what is no index page, and for an empty one."""
    where = web.place(page.url)
    found = _json(page.body, page.url) if page.kind in _JSON else _html(page, project)
    if not found:
        raise FetchFailed(
            f"the index page of '{project}' is empty ({where})", cure="try again later, or take another version"
        )
    return found


def _html(page: Page, project: str) -> tuple[Link, ...]:
    where = web.place(page.url)
    if page.kind not in ("text/html", "application/vnd.pypi.simple.v1+html", "application/xhtml+xml"):
        raise FetchFailed(f"{where} is no index page of '{project}' but {page.kind}", cure="check the index's url")
    reader = Reader()
    reader.feed(page.body.decode("utf-8", "replace"))
    reader.close()
    if reader.version and not reader.version.startswith("1."):
        raise FetchFailed(f"the index page {where} has version {reader.version}", cure="update strix-finetune")
    if not reader.document and page.body.strip():
        raise FetchFailed(f"{where} is no index page of '{project}', it is not even HTML", cure="check the index's url")
    if reader.unfinished:
        # half of a list looks like a whole one, with other versions as the newest
        raise FetchFailed(f"the index page of '{project}' is cut off ({where})", cure="try again later")
    # a relative base is relative to the page
    base = urljoin(page.url, reader.base)
    found = tuple(_anchors(reader, base))
    if reader.anchors and not found:
        raise FetchFailed(
            f"{where} is no index page of '{project}': none of its links is a file",
            cure="check the index's url, and whether a proxy asks for a login",
        )
    return found


class Reader(HTMLParser):
    """Collects the attributes of every <a>; character references in them are resolved by the parser."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.anchors: list[dict[str, str]] = []
        self.base = self.version = ""
        self.document = self.unfinished = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.document = True
        self.unfinished |= tag == "html"
        values = {name: value or "" for name, value in reversed(attrs)}
        if tag == "a" and "href" in values:
            self.anchors.append(values)
        elif tag == "base" and not self.base:
            self.base = values.get("href", "")
        elif tag == "meta" and values.get("name", "").lower() == "pypi:repository-version":
            self.version = values.get("content", "")

    def handle_endtag(self, tag: str) -> None:
        self.unfinished &= tag != "html"


def _anchors(reader: Reader, base: str) -> Iterator[Link]:
    for values in reader.anchors:
        try:
            url, fragment = urldefrag(urljoin(base, values["href"].strip()))
            file = unquote(urlsplit(url).path.rsplit("/", 1)[-1])
        except ValueError:
            # "http://[" is no URL, and so no file
            continue
        if not is_distribution(file):
            continue
        beside = values.get("data-core-metadata", values.get("data-dist-info-metadata"))
        yield Link(
            file,
            url,
            sha256=_digest(fragment),
            python=values.get("data-requires-python", ""),
            yanked="data-yanked" in values,
            metadata=beside not in (None, "false"),
            metadata_sha256=_digest(beside or ""),
        )


def _digest(text: str) -> str:
    """The digest in "sha256=…", alone or among others; another algorithm counts as none."""
    for part in text.split("&"):
        name, _, value = part.partition("=")
        if name.lower() == "sha256" and _SHA256.fullmatch(value.lower()):
            return value.lower()
    return ""


def _json(body: bytes, url: str) -> tuple[Link, ...]:
    where = web.place(url)
    try:
        document = json.loads(body)
        version = str(document.get("meta", {}).get("api-version", "1.0"))
        entries = document["files"]
        if version.startswith("1."):
            return tuple(_entry(entry, url) for entry in entries if is_distribution(entry["filename"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FetchFailed(
            f"{where} is no index page: its JSON is not what PEP 691 says", cure="check the index's url"
        ) from None
    raise FetchFailed(f"the index page {where} has version {version}", cure="update strix-finetune")


def _entry(entry: dict[str, object], url: str) -> Link:
    hashes = entry.get("hashes")
    sha256 = str(hashes.get("sha256", "")).lower() if isinstance(hashes, dict) else ""
    size = entry.get("size")
    beside = entry.get("core-metadata", entry.get("dist-info-metadata"))
    inner = str(beside.get("sha256", "")).lower() if isinstance(beside, dict) else ""
    if not isinstance(entry["filename"], str) or not isinstance(entry["url"], str):
        raise TypeError
    return Link(
        entry["filename"],
        urldefrag(urljoin(url, entry["url"])).url,
        sha256=sha256 if _SHA256.fullmatch(sha256) else "",
        size=size if isinstance(size, int) and size > 0 else 0,
        python=str(entry.get("requires-python") or ""),
        # a reason is a string, and an empty reason is one
        yanked=entry.get("yanked", False) is not False and entry.get("yanked") is not None,
        metadata=bool(beside),
        metadata_sha256=inner if _SHA256.fullmatch(inner) else "",
    )


def is_distribution(file: str) -> bool:
    """Whether a file name is that of a wheel or of a source distribution."""
    return "/" not in file and file.endswith((".whl", ".tar.gz", ".zip"))
