"""The files of a set of wheels, from the channel's index or a mirror of it into this host's cache, each checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from strix_finetune import fetch, mirrors
from strix_finetune.errors import FetchFailed
from strix_finetune.lockmodel import WheelLock, WheelSetLock
from strix_finetune.netconf import NetSettings
from strix_finetune.schema import Index

# what no server means by anything else; an index may mean it by other answers too
_GONE = (404, 410)


def fetch_set(
    held: WheelSetLock, index: Index, folder: Path, settings: NetSettings, tell: Callable[[str], None]
) -> Iterator[tuple[WheelLock, Path]]:
    """Each file of the set and where it is in `folder` now, named by its sha256. `tell` hears of downloads.

    Raises FetchFailed where the index no longer serves a file, or serves another one.
    """
    for number, wheel in enumerate(held.wheels, start=1):
        if not (folder / wheel.sha256).exists():
            size = f", {wheel.size / 1e6:.1f} MB" if wheel.size else ""
            tell(f"fetching {wheel.file} ({number} of {len(held.wheels)}{size})")
        yield wheel, _fetch(wheel, held, index, folder, settings)


def _fetch(wheel: WheelLock, held: WheelSetLock, index: Index, folder: Path, settings: NetSettings) -> Path:
    url = mirrors.address(wheel, index, settings.index_url(held.index))
    try:
        return fetch.fetch(url, wheel.sha256, wheel.size, folder, settings, absent={*_GONE, *index.absent})
    except fetch.Gone:
        sentence = f"the index '{held.index}' does not serve {wheel.file}"
    except fetch.WrongFile as error:
        sentence = f"the index '{held.index}' has another file than the lock: {error.problems[0].message}"
    cure = f"find out why, then lock it anew with 'strix-finetune lock --update {wheel.name}'"
    if settings.index_url(held.index):
        cure = f"put the locked file there, or take another place for the index than {url}"
    raise FetchFailed(sentence, cure=cure)
