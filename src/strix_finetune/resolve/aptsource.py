"""A source file of a Debian package, from the archive that this host's apt uses: no address is written down.

The URL of such an archive is `apt-source:PACKAGE=VERSION/FILE`. apt finds and verifies it by the signed index, and
then the sha256 of the definition is compared as with every other download.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from pathlib import Path

from strix_finetune import fetch, leftovers
from strix_finetune.digests import sha256_of
from strix_finetune.errors import FetchFailed, InputError
from strix_finetune.netconf import NetSettings, redact
from strix_finetune.resolve.apt import AptArchive, State, unreachable
from strix_finetune.schema import Apt

SCHEME = "apt-source:"
_URL = re.compile(r"apt-source:(?P<package>[a-z0-9][a-z0-9+.-]+)=(?P<version>[\w.+:~-]+)/(?P<file>[\w.+~-]+)")
_CHANGED = "find out why before you trust the new file"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source package, as the signed index describes it; `size` in bytes."""

    sha256: str
    size: int


def fetch_source(url: str, sha256: str, size: int, folder: Path, settings: NetSettings, cache: Path, apt: Apt) -> Path:
    """The file in `folder` named by its sha256, as `fetch.fetch` does it; `cache` is where apt's own state is kept.

    Raises InputError for a URL that is none, FetchFailed when the archive does not have the file, cannot be reached,
    or has another file under that name. A failure leaves nothing behind.
    """
    parts = _URL.fullmatch(url)
    if parts is None:
        raise InputError(f"'{url}' names no source file", cure=f"write it as {SCHEME}PACKAGE=VERSION/FILE")
    path = folder / sha256
    if fetch.is_whole(path, sha256, size):
        return path
    package, version, file = parts["package"], parts["version"], parts["file"]
    folder.mkdir(parents=True, exist_ok=True)
    leftovers.remove_leftovers(folder)
    with (
        fetch.writing(file, folder),
        leftovers.temporary(folder, sha256, "work") as work,
        AptArchive(settings, cache).state(apt, sources=True) as state,
    ):
        work.mkdir()
        state.update()
        listed = _listed(state, package, version, file)
        if (listed.sha256, listed.size) != (sha256, size):
            raise _changed(file, listed, sha256, size)
        _download(state, package, version, file, work)
        found = SourceFile(sha256_of(work / file), (work / file).stat().st_size)
        if (found.sha256, found.size) != (sha256, size):
            raise _changed(file, found, sha256, size)
        (work / file).replace(path)
    return path


def parse_sources(text: str) -> dict[str, dict[str, SourceFile]]:
    """Read `apt-cache showsrc`: version → file name → what the index says of it."""
    found: dict[str, dict[str, SourceFile]] = {}
    for stanza in text.split("\n\n"):
        version = re.search(r"^Version: *(\S+)$", stanza, re.M)
        sums = re.search(r"^Checksums-Sha256:[^\n]*\n((?: [^\n]*(?:\n|$))+)", stanza, re.M)
        if version and sums:
            rows = re.findall(r"^ ([0-9a-f]{64}) (\d+) (\S+)$", sums[1], re.M)
            found[version[1]] = {name: SourceFile(sha256, int(size)) for sha256, size, name in rows}
    return found


def _listed(state: State, package: str, version: str, file: str) -> SourceFile:
    versions = parse_sources(state.run("apt-cache", "showsrc", "--only-source", package).stdout)
    if version not in versions:
        has = f" (it has {', '.join(sorted(versions))})" if versions else ""
        raise FetchFailed(
            f"Debian's archive has no source package {package} {version}{has}", cure="correct the archive's url"
        )
    if file not in versions[version]:
        names = ", ".join(sorted(versions[version]))
        raise FetchFailed(f"the source package {package} {version} has no file {file}", cure=f"it has {names}")
    return versions[version][file]


def _download(state: State, package: str, version: str, file: str, work: Path) -> None:
    """Let apt fetch the one part of the package that the file is; it checks the index's hash while it does."""
    if file.endswith(".dsc"):
        part = "--dsc-only"
    else:
        part = "--diff-only" if re.search(r"\.(debian\.tar\.\w+|diff\.gz)$", file) else "--tar-only"
    command = ("apt-get", "source", "-q", "--download-only", "--only-source", part, f"{package}={version}")
    done = state.run(*command, cwd=work)
    if (work / file).is_file():
        return
    text = redact(done.stderr)
    if "No space left on device" in text:
        raise OSError(errno.ENOSPC, "No space left on device")
    if re.search(r"404 +Not Found|410 +Gone", text):
        raise FetchFailed(
            f"{state.mirror} does not serve {file}, although its index lists it",
            cure="name another mirror in STRIX_DEBIAN_MIRROR, or another source in the channel",
        )
    if "Hash Sum mismatch" in text or "unexpected size" in text:
        raise FetchFailed(f"{state.mirror} serves another {file} than its signed index lists", cure=_CHANGED)
    first = next((line for line in text.splitlines() if line.startswith("E: ")), text.strip()[:200])
    reason = unreachable(text) or first.removeprefix("E: ").rstrip(".") or f"apt-get ended with {done.returncode}"
    raise FetchFailed(f"{file} could not be downloaded ({reason})", cure="check the network and the proxy settings")


def _changed(file: str, found: SourceFile, sha256: str, size: int) -> FetchFailed:
    what = f"sha256 is {found.sha256}, not {sha256}"
    if found.sha256 == sha256:
        what = f"size is {found.size} bytes, not {size}"
    return FetchFailed(f"{file} is not the file that the lock names: its {what}", cure=_CHANGED)
