"""Download one file: streamed, checked on the way, resumed after a cut, whole or not at all.

`fetch` wants what the lock names. `discover` is for making a lock: it learns the sha256 of what a server has.
`resume` goes on with what an earlier process began.
"""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from strix_finetune import leftovers, web
from strix_finetune.digests import sha256_of
from strix_finetune.download import Download, Gone, Progress, WrongFile
from strix_finetune.errors import InputError, WorkError
from strix_finetune.netconf import NetSettings, redact
from strix_finetune.web import file_name

__all__ = ["Found", "Gone", "WrongFile", "discover", "fetch", "is_whole", "resume", "writing"]


@dataclass(frozen=True, slots=True)
class Found:
    """A file that is in the cache now, named by its sha256; `size` in bytes."""

    path: Path
    sha256: str
    size: int


def fetch(
    url: str,
    sha256: str,
    size: int,
    folder: Path,
    settings: NetSettings,
    *,
    absent: Collection[int] = (404, 410),
    on_progress: Progress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """The file in `folder` named by its sha256; downloaded when it is not there yet. `size` is in bytes, 0: not known.

    `on_progress` hears the bytes so far and `size`. Network faults, HTTP 5xx and 429 are tried again; `sleep` waits.
    Raises FetchFailed when the file cannot be had, WrongFile when it is not what the lock says, Gone when the server
    answers with a status of `absent`, InputError for a URL that may not be used. A failure leaves nothing behind.
    """
    path = folder / sha256
    if is_whole(path, sha256, size):
        return path
    return _stream(url, sha256, size, folder, settings, on_progress, sleep, absent).path


def discover(
    url: str,
    folder: Path,
    settings: NetSettings,
    *,
    on_progress: Progress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Found:
    """Download a file whose sha256 nobody has said, and keep it in `folder` named by the sha256 that it turns out to
    have. Raises as `fetch` does, and FetchFailed where the server does not say how long the file is."""
    return _stream(url, "", 0, folder, settings, on_progress, sleep)


def resume(
    url: str,
    sha256: str,
    size: int,
    path: Path,
    settings: NetSettings,
    *,
    headers: Mapping[str, str] | None = None,
    plain: bool = False,
    absent: Collection[int] = (404, 410),
    on_progress: Progress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """The file at `path`. What came of it before a failure or an interrupt stays as `path`.part for the next call.

    `headers` go along, but not to another host. `plain` admits http: the host's own configuration names the server, and
    the sha256 decides. Raises as `fetch` does.
    """
    if not web.is_safe(url) and not (plain and url.startswith("http://") and "@" not in url):
        raise InputError(f"'{redact(url)}' cannot be downloaded", cure="its URL begins with https://")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with writing(file_name(url), path.parent):
        try:
            part.touch()
            with part.open("r+b") as out:
                shown = on_progress or (lambda done, size: None)
                download = Download(url, sha256, size, out, web.opener(settings), shown)
                download.headers, download.absent = dict(headers or {}), absent
                if not download.go_on():
                    download.run(sleep)
            part.chmod(0o644)
            part.replace(path)
        except WrongFile:
            part.unlink(missing_ok=True)
            raise


def _stream(
    url: str,
    sha256: str,
    size: int,
    folder: Path,
    settings: NetSettings,
    on_progress: Progress | None,
    sleep: Callable[[float], None],
    absent: Collection[int] = (404, 410),
) -> Found:
    if not web.is_safe(url):
        raise InputError(
            f"'{redact(url)}' cannot be downloaded", cure="an archive's URL begins with https:// and holds no password"
        )
    folder.mkdir(parents=True, exist_ok=True)
    leftovers.remove_leftovers(folder)
    name = sha256 or hashlib.sha256(url.encode()).hexdigest()
    with writing(file_name(url), folder), leftovers.temporary(folder, name) as part:
        with part.open("wb") as out:
            download = Download(url, sha256, size, out, web.opener(settings), on_progress or (lambda done, size: None))
            download.absent = absent
            download.run(sleep)
        found = download.hasher.hexdigest()
        part.replace(folder / found)
    return Found(folder / found, found, download.done)


@contextmanager
def writing(file: str, folder: Path) -> Iterator[None]:
    """While `file` is written. Raises WorkError for what the file system says."""
    try:
        yield
    except BrokenPipeError:
        # nobody hears of the progress: that is no fault of the file
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise WorkError(f"the disk is full, {file} does not fit", cure=f"make room in {folder}") from None
        raise WorkError(f"{file} cannot be written to {folder} ({error.strerror})") from None


def is_whole(path: Path, sha256: str, size: int = 0) -> bool:
    """Whether the cache has the file, unharmed; `size` in bytes, 0: not known."""
    if not path.is_file() or (size and path.stat().st_size != size):
        return False
    return sha256_of(path) == sha256
