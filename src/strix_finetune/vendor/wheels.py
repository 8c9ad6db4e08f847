"""The Python part of a vendored folder: of each locked version the one file that the image installs, and index pages.

The pages are those of PEP 503, with sha256 in the links, so a plain web server over the folder is an index.
"""

from __future__ import annotations

import base64
import contextlib
import html
import posixpath
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from packaging.tags import Tag
from packaging.utils import parse_sdist_filename, parse_wheel_filename

from strix_finetune import mirrors
from strix_finetune.errors import FetchFailed, LockError
from strix_finetune.lockmodel import Lock, PipLock, WheelLock, normalize
from strix_finetune.netconf import NetSettings, redact
from strix_finetune.resolve import distfiles, pip
from strix_finetune.resolve.uv import compile_pins
from strix_finetune.schema import Index
from strix_finetune.vendor.manifest import Entry

ROOT = "wheels"
# the index of Python packages; those of a channel have the names that the channel gives them
PYTHON = "python"
_PAGE_NAME = "index.html"
_PAGE = """<!DOCTYPE html>
<html>
<head><meta name="pypi:repository-version" content="1.0"><title>{title}</title></head>
<body>
{links}</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A file of the index: `size` in bytes, 0 where it does not say."""

    url: str
    file: str
    sha256: str
    size: int


def python_entries(lock: Lock, glibc: str, settings: NetSettings) -> Iterator[Entry]:
    """The files of all requirement sets: of each version the one that fits the image's Python and `glibc` best.

    Raises LockError when the index no longer has a version, FetchFailed when it gives no answer or no fitting file.
    """
    for name, held in lock.pip.items():
        tags = distfiles.supported(held.python, glibc)
        found = _ask(name, held, glibc, settings)
        for (project, version), hashes in held.files.items():
            ranked = [
                (rank, candidate)
                for candidate in found.get(project, ())
                if candidate.sha256 in hashes and (rank := _rank(candidate.file, tags)) is not None
            ]
            if not ranked:
                raise FetchFailed(
                    f"the package index has no locked file of {project} {version} that fits Python {held.python}",
                    cure=f"run 'strix-finetune lock --update {project}'",
                )
            best = min(ranked, key=lambda item: item[0])[1]
            yield Entry(f"{ROOT}/{PYTHON}/{project}/{best.file}", best.sha256, best.size, redact(best.url))


def channel_entries(lock: Lock, indexes: Mapping[str, Index], settings: NetSettings) -> Iterator[Entry]:
    """The files of the sets of wheels, which the lock names one by one. `indexes` are the channel's."""
    for held in lock.wheels.values():
        index = indexes[held.index]
        for wheel in held.wheels:
            source = mirrors.address(wheel, index, settings.index_url(held.index))
            yield Entry(wheel_path(wheel, held.index, index), wheel.sha256, wheel.size, source)


def wheel_path(wheel: WheelLock, name: str, index: Index) -> str:
    """Where a file of the index `name` lies: where it is looked for when wheels/<name> stands for the index."""
    return unquote(mirrors.address(wheel, index, f"{ROOT}/{name}"))


def pages(entries: Iterable[Entry]) -> dict[str, bytes]:
    """The index pages for all files under wheels/: one that lists the projects of an index, one for each project."""
    projects: dict[str, dict[str, list[Entry]]] = {}
    for entry in entries:
        parts = entry.path.split("/")
        if parts[0] == ROOT and (project := _project(parts[-1])):
            projects.setdefault(parts[1], {}).setdefault(project, []).append(entry)
    made: dict[str, bytes] = {}
    for index, listed in projects.items():
        made[f"{ROOT}/{index}/{_PAGE_NAME}"] = _page(index, [(f"{name}/", name) for name in sorted(listed)])
        for project, files in listed.items():
            folder = f"{ROOT}/{index}/{project}"
            links = [
                (f"{quote(posixpath.relpath(entry.path, folder))}#sha256={entry.sha256}", entry.path.rpartition("/")[2])
                for entry in sorted(files, key=lambda entry: entry.path)
            ]
            made[f"{folder}/{_PAGE_NAME}"] = _page(project, links)
    return made


def credentials(url: str, settings: NetSettings) -> dict[str, str]:
    """The headers that a server wants which the host's settings name with a user: for that server alone."""
    words = [settings.indexes.default, *settings.indexes.extra, *settings.indexes.links]
    for word in words:
        parts = urlsplit(word.partition("=")[2] if not word.startswith("http") else word)
        if parts.username and (parts.scheme, parts.hostname, parts.port) == _server(url):
            text = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}
    return {}


def _server(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _ask(name: str, held: PipLock, glibc: str, settings: NetSettings) -> Mapping[str, Sequence[_Candidate]]:
    """Where the index has the files of a set: project → those that uv takes to fit."""
    with tempfile.TemporaryDirectory(prefix="strix-vendor-") as folder:
        output = Path(folder) / "pylock.toml"
        words = [
            *("--no-deps", "--no-build", "--no-header"),
            *("--format", "pylock.toml", "--output-file", str(output), "--python", sys.executable),
            *("--python-version", held.python, "--python-platform", pip.platform(glibc)),
        ]
        done = compile_pins(words, held.text, settings, Path(folder))
        if done.returncode != 0:
            raise pip.explain(done.stderr, name)
        try:
            listed = tomllib.loads(output.read_text("utf-8"))["packages"]
            return {normalize(row["name"]): tuple(_candidates(row, Path(folder))) for row in listed}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LockError(f"uv's answer for '{name}' cannot be read ({type(error).__name__}: {error})") from None


def _project(file: str) -> str:
    """Whose file this is, normalized; empty where it is none of an index."""
    with contextlib.suppress(ValueError):
        return str(parse_wheel_filename(file)[0] if file.endswith(".whl") else parse_sdist_filename(file)[0])
    return ""


def _rank(file: str, tags: Mapping[Tag, int]) -> tuple[int, int] | None:
    """How well a wheel fits, smaller being better; None where it does not."""
    try:
        _, _, build, own = parse_wheel_filename(file)
    except ValueError:
        return None
    ranks = [tags[tag] for tag in own if tag in tags]
    return (min(ranks), -build[0] if build else 0) if ranks else None


def _candidates(row: Mapping[str, Any], folder: Path) -> Iterator[_Candidate]:
    for wheel in row.get("wheels", ()):
        url = wheel.get("url") or (folder / wheel["path"]).resolve().as_uri()
        yield _Candidate(url, wheel.get("name") or _file(url), wheel["hashes"]["sha256"], int(wheel.get("size", 0)))


def _page(title: str, links: Sequence[tuple[str, str]]) -> bytes:
    rows = "".join(f'<a href="{html.escape(href)}">{html.escape(text)}</a><br>\n' for href, text in links)
    return _PAGE.format(title=html.escape(title), links=rows).encode()


def _file(url: str) -> str:
    """The name of the file that a URL leads to."""
    return unquote(urlsplit(url).path.rpartition("/")[2])
