"""The files of an image that say what it is made of: read in one stream of the engine's export, nothing unpacked.

Layers come in any order, so each is noted by itself and they are laid over one another afterwards.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import IO

from strix_finetune.engine import archive
from strix_finetune.engine.base import Engine
from strix_finetune.errors import EngineError

STATUS = "var/lib/dpkg/status"
OS_RELEASE = "usr/lib/os-release"
RCCL_MANIFEST = "opt/rccl/manifest.json"
TRAIN = "opt/strix-finetune/lib/strix_train/__init__.py"
_EXACT = frozenset({STATUS, OS_RELEASE, RCCL_MANIFEST, TRAIN})
_DOC = "usr/share/doc/"
_MODULES = re.compile(r"(?:^|/)(?:site|dist)-packages/")
# right below site-packages: what others carry along is no distribution of its own
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA|[^/]+\.egg-info(?:/PKG-INFO)?")
_RECORD = re.compile(r"[^/]+\.dist-info/RECORD")
_HASHED = re.compile(r"^opt/rccl/lib/librccl\.so\.[^/]+$")
_SPDX = re.compile(rb"SPDX-License-Identifier:[ \t]*([^\r\n]{1,200})")
_AFFERO = re.compile(rb"GNU Affero General Public License|GNU AFFERO GENERAL PUBLIC LICENSE")
# a licence is named at the top of a file
_HEAD = 4096
# copyright files and metadata are some kilobytes; dpkg's list of packages is some megabytes
_LIMIT = 32 * 1024 * 1024
_LINKS = 40


@dataclass(frozen=True, slots=True)
class Tree:
    """Paths have no slash at the beginning.

    `files`: content. `links`: symbolic links of documentation folders. `digests`: sha256 of compiled parts.
    `licences`: Python file → the SPDX expression at its top. `tops`: folder of an installed distribution's metadata →
    the names right below site-packages that are its. `config`: digest of the image's configuration.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    licences: Mapping[str, str] = field(default_factory=dict)
    tops: Mapping[str, frozenset[str]] = field(default_factory=dict)
    config: str = ""

    def follow(self, path: str) -> bytes | None:
        """The content of a file, with symbolic links on its way; None where there is none."""
        for _ in range(_LINKS):
            if path in self.files:
                return self.files[path]
            parts = path.split("/")
            for end in range(1, len(parts) + 1):
                held = "/".join(parts[:end])
                if held in self.links:
                    path = "/".join([archive.linked(held, self.links[held]), *parts[end:]])
                    break
            else:
                return None
        return None


@dataclass(slots=True)
class _Layer:
    """What one layer puts at a path: bytes, a link, a digest, a licence or names; and what it takes away."""

    entries: dict[str, object] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    emptied: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Link:
    target: str


@dataclass(frozen=True, slots=True)
class _Digest:
    sha256: str


@dataclass(frozen=True, slots=True)
class _Tops:
    names: frozenset[str]


def read(engine: Engine, image: str, wanted: Collection[str] = ()) -> Tree:
    """What an image says about itself. `wanted`: paths below site-packages whose content is needed, too.

    Raises EngineError when the image cannot be exported or is not whole.
    """
    also = frozenset(wanted)
    exported = archive.read(engine, image, lambda layer: _noted(layer, also))
    if any(layer is None for layer in exported.layers):
        # a layer that cannot be read may hold anything
        raise EngineError(f"a layer of {image} could not be read, so what it contains is not known")
    return replace(laid([layer for layer in exported.layers if layer is not None]), config=exported.digest)


def laid(layers: list[_Layer]) -> Tree:
    """Layers over one another, the lowest first."""
    held: dict[str, object] = {}
    for layer in layers:
        if layer.gone or layer.emptied:
            held = {path: entry for path, entry in held.items() if not _hidden(path, layer)}
        held |= layer.entries
    return Tree(
        {path: entry for path, entry in held.items() if isinstance(entry, bytes)},
        {path: entry.target for path, entry in held.items() if isinstance(entry, _Link)},
        {path: entry.sha256 for path, entry in held.items() if isinstance(entry, _Digest)},
        {path: entry for path, entry in held.items() if isinstance(entry, str) and entry},
        {path: entry.names for path, entry in held.items() if isinstance(entry, _Tops)},
    )


def _hidden(path: str, layer: _Layer) -> bool:
    if path in layer.gone:
        return True
    return any(above in layer.gone or above in layer.emptied for above in _above(path))


def _above(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition("/")[0]
        yield path


def _noted(layer: tarfile.TarFile, wanted: frozenset[str]) -> _Layer:
    found = _Layer()
    for member in layer:
        path = member.name.removeprefix("./").strip("/")
        folder, _, name = path.rpartition("/")
        if name.startswith(".wh."):
            if name == ".wh..wh..opq":
                found.emptied.add(folder)
            else:
                found.gone.add(f"{folder}/{name[4:]}".strip("/"))
        elif member.issym():
            # whatever was below a folder of this name is out of reach now
            found.gone.add(path)
            if path.startswith(_DOC):
                found.entries[path] = _Link(member.linkname)
        elif member.islnk():
            same = found.entries.get(member.linkname.removeprefix("./").strip("/"))
            if same is not None:
                found.entries[path] = same
        elif member.isfile():
            handle = layer.extractfile(member)
            entry = _entry(path, handle, wanted) if handle else None
            if entry is not None:
                found.entries[path] = entry
    return found


def _entry(path: str, handle: IO[bytes], wanted: frozenset[str]) -> object:
    """What is noted of a file, None for most."""
    if path in _EXACT or (path.startswith(_DOC) and path.endswith("/copyright") and path.count("/") == 4):
        return handle.read(_LIMIT)
    modules = _MODULES.search(path)
    if modules:
        inside = path[modules.end() :]
        if inside in wanted or _METADATA.fullmatch(inside):
            return handle.read(_LIMIT)
        if _RECORD.fullmatch(inside):
            return _Tops(frozenset(_tops(handle)))
        # the empty text, too: it takes the place of what a layer below had there
        return _licence(handle.read(_HEAD)) if path.endswith(".py") else None
    if _HASHED.match(path):
        return _Digest(_sha256(handle))
    return None


def _tops(record: IO[bytes]) -> Iterator[str]:
    """First parts of the paths in a RECORD, but for what lies outside of site-packages."""
    for line in record:
        path = line.decode("utf-8", "replace").strip().strip('"')
        top = path.partition(",")[0].partition("/")[0]
        if top and top != ".." and not top.endswith(".dist-info") and top != "__pycache__":
            yield top


def _licence(head: bytes) -> str:
    named = _SPDX.search(head)
    if named:
        return named[1].decode("utf-8", "replace").strip().strip("*/#-> \"'")
    return "AGPL-3.0" if _AFFERO.search(head) else ""


def _sha256(handle: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while block := handle.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()
