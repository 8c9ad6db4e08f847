"""What of a locked set of wheels, and of archives, is still served as it was, and what is newer than it.

Nothing is downloaded but pages and the first byte of each file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from packaging.requirements import Requirement
from packaging.version import Version

from strix_finetune.lockmodel import ArchiveLock, WheelLock, WheelSetLock, normalize
from strix_finetune.resolve import bucket
from strix_finetune.resolve.browser import Browser
from strix_finetune.resolve.catalog import Catalog
from strix_finetune.resolve.versions import is_preview, order

_GONE = (403, 404, 410)


@dataclass(frozen=True, slots=True)
class Finding:
    """`lost`: no longer served as it is locked. Otherwise it is news: something newer is there."""

    what: str
    lost: bool

    def __str__(self) -> str:
        return f"{'no longer served' if self.lost else 'newer'}: {self.what}"


def wheels(held: WheelSetLock, asked: Sequence[str], catalog: Catalog) -> Iterator[Finding]:
    """Each file of a set against the index of `catalog`. `asked`: the set's requirements; only for what they name is a
    newer version told. Raises FetchFailed where the index gives no answer."""
    named = {normalize(Requirement(line).name) for line in asked}
    for wheel in held.wheels:
        yield from _wheel(wheel, wheel.name in named, catalog)


def _wheel(wheel: WheelLock, is_named: bool, catalog: Catalog) -> Iterator[Finding]:
    listing = catalog.listing(wheel.name)
    newest = next((file for file in listing.files if not is_preview(wheel.name, file.version)), None)
    has = f" (it has {newest.version})" if newest else ""
    link = next((link for link in catalog.links(wheel.name) or () if link.file == wheel.file), None)
    if link is None:
        yield Finding(f"{wheel.name} {wheel.version}{has}", lost=True)
        return
    probe = catalog.browser.probe(link.url, absent={*_GONE, *catalog.index.absent})
    if probe is None:
        yield Finding(f"{wheel.name} {wheel.version}, which is listed and not there{has}", lost=True)
    elif (wheel.size and probe.size and probe.size != wheel.size) or link.sha256 not in ("", wheel.sha256):
        yield Finding(f"{wheel.name} {wheel.version}: another file has its name now", lost=True)
    locked = Version(wheel.version)
    newer = [
        found.version
        for found in listing.files
        if order(found.version) > order(locked)
        and (is_preview(wheel.name, locked) or not is_preview(wheel.name, found.version))
    ]
    if newer and is_named:
        yield Finding(f"{wheel.name} {newer[0]} (locked: {wheel.version})", lost=False)


def archive(name: str, held: ArchiveLock, browser: Browser) -> Iterator[Finding]:
    """An archive that is downloaded, and for a tarball of ROCm whether its folder has a newer one."""
    probe = browser.probe(held.url, absent=_GONE)
    if probe is None:
        yield Finding(f"the archive {name} ({held.url})", lost=True)
    elif probe.size and probe.size != held.size:
        yield Finding(f"the archive {name}: another file has its name now", lost=True)
    folder, _, file = held.url.rpartition("/")
    locked = bucket.as_tarball(bucket.Entry(unquote(file), held.url))
    if locked is None:
        return
    newer = [
        found
        for found in bucket.tarballs(folder, browser)
        if found.family == locked.family
        and found.version > locked.version
        and (locked.version.is_prerelease or not found.version.is_prerelease)
    ]
    if newer:
        yield Finding(f"{newer[-1].entry.name} (locked: {unquote(file)})", lost=False)
