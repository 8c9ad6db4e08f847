"""One package index as the resolver sees it: each page and each file's metadata is asked for once.

Only this index is ever asked. What it does not serve does not exist, however many files of that name lie elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from strix_finetune import fetch, leftovers
from strix_finetune.errors import FetchFailed
from strix_finetune.resolve import page
from strix_finetune.resolve.browser import Browser, Probe
from strix_finetune.resolve.distfiles import File, Listing, choose, supported
from strix_finetune.resolve.metadata import Metadata, read
from strix_finetune.resolve.page import Link
from strix_finetune.schema import Index

# what a file that was there and is not any more is answered with
_GONE = (404, 410)

Tell = Callable[[str], None]


def say(line: str) -> None:
    """Progress that takes long enough to be told."""
    print(line, file=sys.stderr, flush=True)


@dataclass
class Catalog:
    """The index `name` of a channel, for CPython `python` ("3.13") and `glibc` ("2.41").

    `cache`: the user's cache folder of this program; files that must be read whole stay in its `archives`.
    """

    name: str
    index: Index
    python: str
    glibc: str
    browser: Browser
    cache: Path
    tell: Tell = say
    _links: dict[str, tuple[Link, ...] | None] = field(default_factory=dict)
    _listings: dict[str, Listing] = field(default_factory=dict)
    _metadata: dict[str, Metadata] = field(default_factory=dict)
    _probes: dict[str, Probe] = field(default_factory=dict)

    def listing(self, project: str) -> Listing:
        """What the index has of a project (normalized name). Raises FetchFailed for a page that cannot be one."""
        if project not in self._listings:
            self._listings[project] = self._list(project)
        return self._listings[project]

    def links(self, project: str) -> tuple[Link, ...] | None:
        """All files on the page of a project, whatever they fit; None where the index does not serve it."""
        if project not in self._links:
            found = self.browser.page(f"{self.index.url}/{project}/", accept=page.ACCEPT, absent=self.index.absent)
            self._links[project] = page.links(found, project) if found else None
        return self._links[project]

    def _list(self, project: str) -> Listing:
        found = self.links(project)
        if found is None:
            return Listing(project, served=False)
        listing = choose(project, found, supported(self.python, self.glibc), self.python)
        if listing.strange:
            raise FetchFailed(
                f"the index page of '{project}' lists files of other projects ({listing.strange})",
                cure="check the index's url",
            )
        return listing

    def metadata(self, file: File) -> Metadata:
        """What a file needs. Raises FetchFailed where it cannot be read, or is another file than its name says."""
        url = file.link.url
        if url not in self._metadata:
            self._metadata[url] = read(file, self.browser, lambda: self.probe(file), lambda: self._whole(file))
        return self._metadata[url]

    def probe(self, file: File) -> Probe:
        """What the server says of a file. Raises FetchFailed for one that is listed and not there."""
        url = file.link.url
        if url not in self._probes:
            found = self.browser.probe(url, absent={*_GONE, *self.index.absent})
            if found is None:
                raise FetchFailed(
                    f"the index '{self.name}' lists {file.link.file}, but it is not there",
                    cure="try again later, or take another version: files are being added or taken away",
                )
            if file.link.size and found.size and found.size != file.link.size:
                raise FetchFailed(
                    f"{file.link.file} has {found.size} bytes, and the index '{self.name}' says {file.link.size}",
                    cure="try again later, or take another version",
                )
            self._probes[url] = found
        return self._probes[url]

    def digest(self, file: File) -> tuple[str, int]:
        """sha256 and size in bytes of a file that is there; where the index says no sha256, all of it is read."""
        size = self.probe(file).size or file.link.size
        if file.link.sha256:
            return file.link.sha256, size
        return self._remembered(file) or self._learn(file)

    def _whole(self, file: File) -> Path:
        archives = self.cache / "archives"
        sha256, size = self.digest(file)
        return fetch.fetch(file.link.url, sha256, size, archives, self.browser.settings, sleep=self.browser.sleep)

    def _learn(self, file: File) -> tuple[str, int]:
        probe = self.probe(file)
        self.tell(f"{file.link.file}: the index says no sha256, reading {probe.size / 1e6:.1f} MB to know it")
        archives = self.cache / "archives"
        found = fetch.discover(file.link.url, archives, self.browser.settings, sleep=self.browser.sleep)
        self._remember(file, probe, found.sha256, found.size)
        return found.sha256, found.size

    def _note(self, file: File) -> Path:
        return self.cache / "learned" / f"{hashlib.sha256(file.link.url.encode()).hexdigest()}.json"

    def _remembered(self, file: File) -> tuple[str, int] | None:
        """What was learned before of the same version of the same file, by its strong entity tag."""
        probe = self.probe(file)
        try:
            note = json.loads(self._note(file).read_bytes())
            if probe.tag and (note["tag"], note["size"]) == (probe.tag, probe.size):
                return str(note["sha256"]), probe.size
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def _remember(self, file: File, probe: Probe, sha256: str, size: int) -> None:
        if not probe.tag or probe.size != size:
            return
        path = self._note(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        leftovers.remove_leftovers(path.parent)
        note = {"url": file.link.url, "tag": probe.tag, "size": size, "sha256": sha256}
        leftovers.write(path, json.dumps(note, indent=1) + "\n")
