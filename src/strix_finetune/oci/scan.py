"""Read a local image: the engine's archive of it is streamed once, layer by layer, in whatever order they come."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import IO, Any

from strix_finetune.engine import archive
from strix_finetune.engine.base import Engine
from strix_finetune.errors import EngineError, Problem
from strix_finetune.oci.tree import NOWHERE, OPAQUE, WHITEOUT, Entry, Kind

_BLOCK = 1024 * 1024
_XATTR = "SCHILY.xattr."
# of the file system that the layer was made on, not of the file
_FOREIGN_XATTRS = ("trusted.overlay.", "user.overlay.", "security.selinux")
_KINDS = {
    tarfile.DIRTYPE: Kind.FOLDER,
    tarfile.SYMTYPE: Kind.LINK,
    tarfile.CHRTYPE: Kind.CHARACTER,
    tarfile.BLKTYPE: Kind.BLOCK,
    tarfile.FIFOTYPE: Kind.FIFO,
}


@dataclass(slots=True)
class RawLayer:
    """One layer as the engine wrote it. `kept`: path → content of the files that were asked for."""

    entries: list[Entry] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)
    kept: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RawImage:
    """An image: its configuration, and its layers, lowest first. `names`: what the engine's archive calls them."""

    config: Mapping[str, Any]
    layers: tuple[RawLayer, ...]
    names: tuple[str, ...] = ()

    @property
    def diff_ids(self) -> tuple[str, ...]:
        return tuple(self.config["rootfs"]["diff_ids"])


Spool = Callable[[int], IO[bytes]]
Keep = Callable[[str], bool]


def read_image(
    engine: Engine,
    ref: str,
    *,
    spool: Spool | None = None,
    keep: Keep = lambda path: False,
    known: Mapping[str, RawLayer] | None = None,
) -> RawImage:
    """Stream an image out of the engine. `spool(n)` opens the file that gets the contents of the n-th layer seen.

    `keep` says of which files the content is held in memory. `known`: layers by their names in the archive, which are
    not read. Raises EngineError with one sentence.
    """
    count = iter(range(1 << 20))
    exported = archive.read(
        engine,
        ref,
        lambda layer: read_layer(layer, next(count), spool=spool, keep=keep),
        lambda name: (known or {}).get(name),
    )
    ids = (exported.config.get("rootfs") or {}).get("diff_ids")
    if not isinstance(ids, list) or len(ids) != len(exported.layers):
        raise EngineError(Problem(f"the engine's archive of {ref} does not say what its layers are"))
    return RawImage(exported.config, tuple(layer or RawLayer() for layer in exported.layers), exported.names)


def read_layer(
    layer: tarfile.TarFile,
    number: int,
    *,
    spool: Spool | None = None,
    keep: Keep = lambda path: False,
    kept_alone: bool = False,
) -> RawLayer:
    """Read one layer's tar. `number` is what `Entry.where` calls it.

    `kept_alone`: of other files than those that `keep` names the content is passed over, and a hard link may be to a
    file of a layer below, which is not looked for. Otherwise such a link raises EngineError.
    """
    found = RawLayer()
    by_path: dict[str, Entry] = {}
    with spool(number) if spool else nullcontext() as copy:
        _read_members(layer, number, found, by_path, keep, kept_alone, copy)
    found.entries = list(by_path.values())
    return found


def _read_members(
    layer: tarfile.TarFile,
    number: int,
    found: RawLayer,
    by_path: dict[str, Entry],
    keep: Keep,
    kept_alone: bool,
    copy: IO[bytes] | None,
) -> None:
    for member in layer:
        path = _path(member.name)
        folder, _, name = path.rpartition("/")
        if name == OPAQUE:
            found.opaque.append(folder)
        elif name.startswith(WHITEOUT):
            found.gone.append(f"{folder}/{name[len(WHITEOUT) :]}".lstrip("/"))
        elif path:
            by_path[path] = _entry(layer, member, path, number, by_path, found, keep, kept_alone, copy)
        # the list of members would grow with the layer
        layer.members = []  # type: ignore[attr-defined]


def _entry(
    layer: tarfile.TarFile,
    member: tarfile.TarInfo,
    path: str,
    number: int,
    by_path: Mapping[str, Entry],
    found: RawLayer,
    keep: Keep,
    kept_alone: bool,
    copy: IO[bytes] | None,
) -> Entry:
    xattrs = tuple(
        sorted(
            (name.removeprefix(_XATTR), value)
            for name, value in member.pax_headers.items()
            if name.startswith(_XATTR) and not name.removeprefix(_XATTR).startswith(_FOREIGN_XATTRS)
        )
    )
    first = by_path.get(_path(member.linkname)) if member.islnk() else None
    if first is not None:
        return replace(first, path=path)
    if member.islnk() and not kept_alone:
        raise EngineError(Problem(f"a layer has {path} as a link to {member.linkname}, which is not in it"))
    common = (path, _KINDS.get(member.type, Kind.FILE), member.mode & 0o7777, member.uid, member.gid)
    mtime = int(member.mtime)
    if not member.isfile() and not member.islnk():
        device = (member.devmajor, member.devminor)
        return Entry(*common, mtime, target=member.linkname, xattrs=xattrs, device=device)
    if member.islnk() or (kept_alone and not keep(path)):
        return Entry(*common, mtime, size=member.size, xattrs=xattrs, inode=(number, path), where=NOWHERE)
    digest = hashlib.sha256()
    offset = copy.tell() if copy else 0
    handle = layer.extractfile(member)
    assert handle is not None
    content: list[bytes] | None = [] if keep(path) else None
    while block := handle.read(_BLOCK):
        digest.update(block)
        if copy:
            copy.write(block)
        if content is not None:
            content.append(block)
    if content is not None:
        found.kept[path] = b"".join(content)
    return Entry(
        *common,
        mtime,
        size=member.size,
        sha256=digest.hexdigest(),
        xattrs=xattrs,
        inode=(number, path),
        where=(number, offset),
    )


def _path(name: str) -> str:
    """Without "./" and slashes at the ends; the root is the empty text."""
    plain = name.removeprefix("./").strip("/")
    return "" if plain == "." else plain
