"""An archive that a layer builds from, wherever it is: at an address, in Debian's archive, at the package index."""

from __future__ import annotations

from pathlib import Path

from strix_finetune import fetch
from strix_finetune.netconf import NetSettings
from strix_finetune.resolve import aptsource, sdist
from strix_finetune.schema import Apt

# Those without an address: the host's own clients know where.
SCHEMES = (aptsource.SCHEME, sdist.SCHEME)


def get(url: str, sha256: str, size: int, cache: Path, settings: NetSettings, apt: Apt) -> Path:
    """The file, checked, in the user's cache folder `cache`. Raises InputError and FetchFailed."""
    folder = cache / "archives"
    if url.startswith(aptsource.SCHEME):
        return aptsource.fetch_source(url, sha256, size, folder, settings, cache, apt)
    if url.startswith(sdist.SCHEME):
        return sdist.fetch_sdist(url, sha256, size, folder, settings)
    return fetch.fetch(url, sha256, size, folder, settings)
