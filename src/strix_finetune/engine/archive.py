"""An image as the engine exports it, read once as it streams: each layer is visited when it passes by, none is held."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import posixpath
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, Generic, TypeVar, cast

from strix_finetune.engine.base import Engine
from strix_finetune.engine.places import IterReader
from strix_finetune.engine.unpacked import unpacked
from strix_finetune.errors import EngineError, Problem

_BLOCK = 1024 * 1024
# configurations and manifests are some kilobytes; anything larger is a layer
_TEXT_LIMIT = 8 * 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Exported(Generic[T]):
    """What was seen of an image: its configuration, and what the visit of each layer gave, the lowest first.

    `digest`: "sha256:…" of the configuration as the engine wrote it. A layer that is no tar gave None. Where one layer
    is there twice, so is what its visit gave. `names`: what the archive calls each; engines make that from the layer
    and those below, so that the same name is the same layer.
    """

    config: Mapping[str, Any]
    layers: tuple[T | None, ...]
    digest: str = ""
    names: tuple[str, ...] = ()


def read(
    engine: Engine,
    image: str,
    visit: Callable[[tarfile.TarFile], T],
    known: Callable[[str], T | None] = lambda name: None,
) -> Exported[T]:
    """Export an image and `visit` each of its layers, in the order in which the engine sends them.

    `known` may have an answer for a layer by its name in the archive, which then passes by unread.

    Raises EngineError when it cannot be exported or the archive is not whole.
    """
    seen: dict[str, T | None] = {}
    links: dict[str, str] = {}
    texts: dict[str, bytes] = {}
    stream = engine.export(image)
    try:
        with tarfile.open(fileobj=io.BufferedReader(IterReader(stream), _BLOCK), mode="r|") as archive:
            for member in archive:
                if member.issym() or member.islnk():
                    links[member.name] = _target(member)
                handle = archive.extractfile(member) if member.isfile() else None
                if handle is None:
                    continue
                if (held := known(member.name)) is not None:
                    seen[member.name] = held
                    continue
                head = cast(io.BufferedReader, handle).peek(1)
                if head[:1] in (b"{", b"["):
                    texts[member.name] = handle.read(_TEXT_LIMIT)
                elif member.size > 0:
                    seen[member.name] = _visited(handle, visit)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            # of the disk that a visit writes to, and not of the archive
            raise
        raise EngineError(Problem(f"the export of {image} is not a whole archive: {error}")) from error
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()
    config, names, digest = _described(texts)
    places = tuple(links.get(name, name) for name in names)
    return Exported(config, tuple(seen.get(place) for place in places), digest, places)


def _described(texts: Mapping[str, bytes]) -> tuple[Mapping[str, Any], list[str], str]:
    """The image's configuration, the members that are its layers, and the configuration's digest."""
    try:
        manifest: dict[str, Any] = json.loads(texts["manifest.json"])[0]
        config = json.loads(texts[manifest["Config"]])
        names: list[str] = manifest["Layers"]
        if isinstance(config, dict) and isinstance(names, list):
            return config, names, f"sha256:{hashlib.sha256(texts[manifest['Config']]).hexdigest()}"
    except (KeyError, ValueError, IndexError, TypeError, AttributeError):
        pass
    raise EngineError(Problem("the engine's archive of the image does not say what its layers are")) from None


def _target(member: tarfile.TarInfo) -> str:
    """The member that a link stands for: of a symbolic one, from where it lies."""
    return member.linkname if member.islnk() else linked(member.name, member.linkname)


def linked(link: str, target: str) -> str:
    """Where a symbolic link leads, from the root on, above which nothing is."""
    return posixpath.normpath(posixpath.join("/", posixpath.dirname(link), target)).lstrip("/")


def _visited(handle: IO[bytes], visit: Callable[[tarfile.TarFile], T]) -> T | None:
    """What a visit of one layer gives; None for what is no tar."""
    with unpacked(handle) as plain:
        try:
            layer = tarfile.open(fileobj=plain, mode="r|*", bufsize=_BLOCK)  # noqa: SIM115
        except tarfile.ReadError:
            return None
        with layer:
            return visit(layer)
