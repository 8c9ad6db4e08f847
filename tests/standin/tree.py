"""What AMD's servers serve and how they lay it out: a pure function from a path to an answer.

Seen on them in 2026-09: the aggregate index redirects each project to the product that owns it; hrefs are relative and
encode "+"; there are no hashes, no PEP 691, no metadata files; whatever is not served is forbidden, not missing. The
older index has one flat folder of files, and the tarballs lie in buckets that list 1,000 keys at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from html import escape
from urllib.parse import parse_qs, quote

from tests.standin.wheels import Archive

AGGREGATE = "/rocm/whl-next"
LEGACY = "/rocm/whl-multi-arch"
BUCKET = "/therock-nightly-tarball"
# the product that owns a project: its own index is /rocm/<product>/whl-next
_PYTORCH = ("amd-torch-*", "amd-torchvision-*", "apex", "torch", "torchaudio", "torchvision", "triton")
_DATE = "Tue, 25 Aug 2026 19:04:11 GMT"


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer before the server's faults."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


FORBIDDEN = Answer(
    403,
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>',
    {"Content-Type": "application/xml"},
)


def owner(project: str) -> str:
    """The product whose index a project belongs to."""
    return "pytorch" if any(fnmatchcase(project, pattern) for pattern in _PYTORCH) else "core"


class Tree:
    """The files that are there, by project; tests add and take away.

    `archives`: the newer index. `legacy`: the older one. `tarballs`: key → content of the bucket, which lists `page`
    keys at a time.
    """

    def __init__(
        self,
        archives: Iterable[Archive] = (),
        legacy: Iterable[Archive] = (),
        tarballs: Mapping[str, bytes] | None = None,
        *,
        page: int = 1000,
    ) -> None:
        self._projects: dict[str, dict[str, bytes]] = {}
        self._legacy: dict[str, dict[str, bytes]] = {}
        self._tarballs = dict(sorted((tarballs or {}).items()))
        self._page = page
        for archive in archives:
            self.add(archive)
        for archive in legacy:
            self._legacy.setdefault(archive.project, {})[archive.filename] = archive.content

    def add(self, archive: Archive) -> None:
        """Publish a file; one of the same name is replaced."""
        self._projects.setdefault(archive.project, {})[archive.filename] = archive.content

    def withdraw(self, pattern: str) -> None:
        """Take away the files that match, from the pages as well; a project without files is not served at all."""
        for files in self._projects.values():
            for name in [name for name in files if fnmatchcase(name, pattern)]:
                del files[name]
        self._projects = {name: files for name, files in self._projects.items() if files}

    def path(self, filename: str) -> str:
        """Where a file of the newer index really lies, behind the redirect."""
        project = next(name for name, files in self._projects.items() if filename in files)
        return f"/rocm/{owner(project)}/whl-next/{project}/{filename}"

    def answer(self, path: str, query: str = "") -> Answer:
        """What is served for a decoded path."""
        if path == f"{AGGREGATE}/":
            return _page("Simple index", [(f"{name}/", name) for name in sorted(self._projects)])
        if path.startswith(f"{AGGREGATE}/"):
            project = path.removeprefix(f"{AGGREGATE}/").split("/", 1)[0]
            if project not in self._projects:
                return FORBIDDEN
            place = path.replace(AGGREGATE, f"/rocm/{owner(project)}/whl-next", 1)
            return Answer(302, headers={"Location": quote(place)})
        for product in ("pytorch", "core"):
            if path.startswith(f"/rocm/{product}/whl-next/"):
                return self._product(product, path.removeprefix(f"/rocm/{product}/whl-next/"))
        if path.startswith(f"{LEGACY}/"):
            return self._older(path.removeprefix(f"{LEGACY}/"))
        if path in (BUCKET, f"{BUCKET}/"):
            return self._listing({name: values[0] for name, values in parse_qs(query).items()})
        if path.startswith(f"{BUCKET}/") and path.removeprefix(f"{BUCKET}/") in self._tarballs:
            return _file(self._tarballs[path.removeprefix(f"{BUCKET}/")], "application/gzip")
        return FORBIDDEN

    def _product(self, product: str, rest: str) -> Answer:
        mine = {name: files for name, files in self._projects.items() if owner(name) == product}
        if rest == "":
            return _page("Simple index", [(f"{name}/", name) for name in sorted(mine)])
        project, _, name = rest.partition("/")
        if "/" not in rest or project not in mine:
            return FORBIDDEN
        if name == "":
            return _page(f"Links for {project}", [(quote(file), file) for file in sorted(mine[project])])
        return _file(mine[project][name]) if name in mine[project] else FORBIDDEN

    def _older(self, rest: str) -> Answer:
        if rest == "":
            return _page("Simple index", [(f"{name}/", name) for name in sorted(self._legacy)])
        project, _, name = rest.partition("/")
        if "/" in rest:
            if name or project not in self._legacy:
                return FORBIDDEN
            return _page(
                f"Links for {project}", [(f"../{quote(file)}", file) for file in sorted(self._legacy[project])]
            )
        return next((_file(files[rest]) for files in self._legacy.values() if rest in files), FORBIDDEN)

    def _listing(self, query: Mapping[str, str]) -> Answer:
        """A page of the bucket, in either version of the protocol; the next one begins behind the last key of it."""
        second = query.get("list-type") == "2"
        after = query.get("continuation-token", query.get("start-after", "")) if second else query.get("marker", "")
        prefix = query.get("prefix", "")
        keys = [key for key in self._tarballs if key.startswith(prefix) and key > after]
        count = min(int(query.get("max-keys", "1000")), self._page)
        shown, more = keys[:count], len(keys) > count
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-08-25T19:04:11.000Z</LastModified>"
            f"<Size>{len(self._tarballs[key])}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for key in shown
        )
        following = ""
        if more:
            mark = "NextContinuationToken" if second else "NextMarker"
            following = f"<{mark}>{escape(shown[-1])}</{mark}>"
        text = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET[1:]}</Name><Prefix>{escape(prefix)}</Prefix><MaxKeys>{count}</MaxKeys>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{following}{rows}</ListBucketResult>"
        )
        return Answer(200, text.encode(), {"Content-Type": "application/xml"})


def _page(title: str, links: Iterable[tuple[str, str]]) -> Answer:
    rows = "".join(f'    <a href="{href}">{escape(text)}</a><br/>\n' for href, text in links)
    text = f"<!DOCTYPE html>\n<html>\n  <body>\n    <h1>{escape(title)}</h1>\n{rows}  </body>\n</html>\n"
    return Answer(200, text.encode(), {"Content-Type": "text/html", "Last-Modified": _DATE})


def _file(content: bytes, kind: str = "binary/octet-stream") -> Answer:
    return Answer(200, content, {"Content-Type": kind, "Last-Modified": _DATE, "Accept-Ranges": "bytes"})
