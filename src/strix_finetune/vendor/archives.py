"""The files that layers build from, in a vendored folder: `archives/<sha256>/<file>`."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

from strix_finetune.lockmodel import ArchiveLock, Lock
from strix_finetune.vendor.manifest import Entry

ROOT = "archives"


def entries(lock: Lock) -> Iterator[Entry]:
    for archive in lock.archives.values():
        yield Entry(path(archive), archive.sha256, archive.size, archive.url)


def path(archive: ArchiveLock) -> str:
    return f"{ROOT}/{archive.sha256}/{unquote(archive.url.rsplit('/', 1)[-1])}"
