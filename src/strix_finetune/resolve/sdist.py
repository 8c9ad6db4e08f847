"""A source distribution from the package index that this host uses: no address is written down.

The URL of such an archive is `sdist:NAME==VERSION/FILE`. uv says where the index has it, and the sha256 of the
definition is compared with the index's and, as with every other download, with the file's. Nothing of it is built.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from strix_finetune import fetch
from strix_finetune.errors import FetchFailed, InputError
from strix_finetune.fetch import is_whole
from strix_finetune.netconf import NetSettings
from strix_finetune.resolve.pip import explain
from strix_finetune.resolve.uv import compile_pins

SCHEME = "sdist:"
_URL = re.compile(r"sdist:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[\w.!+-]+)/(?P<file>[\w.!+-]+\.tar\.gz)")


@dataclass(frozen=True, slots=True)
class Found:
    """Where the index has a source distribution, a URL or a path of this host, and what it says of it."""

    place: str
    sha256: str


def fetch_sdist(url: str, sha256: str, size: int, folder: Path, settings: NetSettings) -> Path:
    """The file in `folder` named by its sha256, as `fetch.fetch` does it.

    Raises InputError for a URL that is none, FetchFailed when the index does not have the file or has another one.
    """
    parts = _URL.fullmatch(url)
    if parts is None:
        raise InputError(f"'{url}' names no source distribution", cure=f"write it as {SCHEME}NAME==VERSION/FILE.tar.gz")
    path = folder / sha256
    if is_whole(path, sha256, size):
        return path
    found = _ask(parts["name"], parts["version"], settings)
    file = unquote(urlsplit(found.place).path.rsplit("/", 1)[-1])
    if file != parts["file"]:
        raise FetchFailed(
            f"the package index has {file} of {parts['name']} {parts['version']} and no {parts['file']}",
            cure="correct the archive's url",
        )
    if found.sha256 and found.sha256 != sha256:
        raise FetchFailed(
            f"the package index has another {file} than the definition names: sha256 {found.sha256}, not {sha256}",
            cure="find out why before you trust the new file",
        )
    if not found.place.startswith(("http://", "https://")):
        return _copied(Path(found.place), path, sha256, size)
    from strix_finetune.vendor.wheels import credentials

    headers = credentials(found.place, settings)
    # a mirror of the local network may be plain: the sha256 is what is trusted
    fetch.resume(found.place, sha256, size, path, settings, headers=headers, plain=True)
    return path


def _ask(name: str, version: str, settings: NetSettings) -> Found:
    """Ask uv, which reads the few lines of metadata that a source distribution carries and builds nothing of it."""
    with tempfile.TemporaryDirectory(prefix="strix-sdist-") as work:
        output = Path(work) / "pylock.toml"
        words = [
            *("--no-deps", "--no-header", "--no-binary", name, "--python", sys.executable),
            *("--format", "pylock.toml", "--output-file", str(output)),
            *(("--no-index",) if settings.indexes.no_index else ()),
        ]
        done = compile_pins(words, f"{name}=={version}\n", settings, Path(work))
        if done.returncode:
            raise explain(done.stderr, f"{name} {version}")
        packages = tomllib.loads(output.read_text("utf-8")).get("packages", [])
    return _found(name, version, packages)


def _found(name: str, version: str, packages: list[dict[str, Any]]) -> Found:
    """What uv's answer says. Raises FetchFailed where it has no source distribution."""
    for package in packages:
        entry = package.get("sdist")
        if entry:
            place = str(entry.get("url") or entry.get("path") or "")
            if place.startswith("file://"):
                place = unquote(urlsplit(place).path)
            return Found(place, str((entry.get("hashes") or {}).get("sha256", "")))
    raise FetchFailed(
        f"the package index has no source distribution of {name} {version}", cure="correct the archive's url"
    )


def _copied(source: Path, path: Path, sha256: str, size: int) -> Path:
    """Take a file of this host, checked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.partial")
    try:
        shutil.copyfile(source, aside)
        if not is_whole(aside, sha256, size):
            raise FetchFailed(f"{source} is not the file that the definition names", cure="find out why")
        aside.replace(path)
    except OSError as error:
        raise FetchFailed(f"{source} cannot be read ({error.strerror})", cure="check the index settings") from None
    finally:
        aside.unlink(missing_ok=True)
    return path
