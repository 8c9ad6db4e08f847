"""An image as one tree, whether an engine holds it or a registry: files, packages, settings."""

from __future__ import annotations

import gzip
import json
import re
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_finetune.engine.base import Engine
from strix_finetune.engine.unpacked import unpacked
from strix_finetune.errors import EngineError, Problem
from strix_finetune.oci.scan import Keep, RawImage, RawLayer, read_image, read_layer
from strix_finetune.oci.tree import Tree, apply
from strix_finetune.registry import parts
from strix_finetune.registry.client import Registry
from strix_finetune.registry.faults import RegistryError

STATUS = "var/lib/dpkg/status"
# what says which file belongs to which package
_LISTS = re.compile(r"var/lib/dpkg/info/[^/]+\.list|.*\.dist-info/RECORD")


@dataclass(frozen=True, slots=True)
class Whole:
    """`name`: as it was asked for. `texts`: path → content of dpkg's lists and of wheels' RECORD files.

    `config`: the configuration in the words of the image specification. `stored`: bytes in a registry, None for an
    image that an engine holds. `layers`: diff ids, lowest first.
    """

    name: str
    tree: Tree
    texts: Mapping[str, bytes]
    config: Mapping[str, Any]
    layers: tuple[str, ...]
    stored: int | None = None


def keep(path: str) -> bool:
    """Whether the content of a file is needed."""
    return path == STATUS or _LISTS.fullmatch(path) is not None


def local(engine: Engine, ref: str) -> Whole:
    """The image that an engine holds under a name or id. Raises EngineError."""
    raw = read_image(engine, ref, keep=keep)
    return assembled(ref, raw)


def assembled(name: str, raw: RawImage, count: int | None = None, stored: int | None = None) -> Whole:
    """The tree of the lowest `count` layers of an image, None for all."""
    tree, texts = laid(raw.layers[:count])
    return Whole(name, tree, texts, raw.config, raw.diff_ids[:count], stored)


def laid(layers: Sequence[RawLayer]) -> tuple[Tree, Mapping[str, bytes]]:
    """Layers over one another, the lowest first: their tree, and the contents that were kept of what is in it."""
    tree: Tree = {}
    texts: dict[str, bytes] = {}
    for layer in layers:
        apply(tree, layer.entries, layer.gone, layer.opaque)
        texts |= layer.kept
    return tree, {path: text for path, text in texts.items() if path in tree}


def pushed(registry: Registry, reference: str, folder: Path | None = None) -> Whole:
    """The image that a registry serves for a tag or digest; its layers pass through `folder` one after another.

    Raises RegistryError, or EngineError for what is no image.
    """
    name = registry.repository.at(reference)
    image = parts.read(registry, reference)
    if image is None:
        raise RegistryError(Problem(f"the registry has no {name}", cure="look at its tags"))
    try:
        said: dict[str, Any] = json.loads(registry.small(image.config))
        found: list[RawLayer] = []
        with tempfile.TemporaryDirectory(prefix="strix-finetune-", dir=folder) as work:
            for number, layer in enumerate(image.layers):
                path = Path(work) / str(number)
                registry.download(layer, path, lambda done: None)
                found.append(stored_layer(path, number, keep))
                path.unlink()
        raw = RawImage(said, tuple(found))
        if len(raw.diff_ids) != len(found):
            raise ValueError("it names other layers than it has")
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(Problem(f"{name} is no image that can be read: {error}")) from error
    except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
        raise EngineError(Problem(f"a layer of {name} is not whole: {error}")) from error
    return assembled(name, raw, stored=sum(part.size for part in (image.config, *image.layers)))


def stored_layer(path: Path, number: int, keep: Keep, *, kept_alone: bool = False) -> RawLayer:
    """A layer in a file, packed or not, read as `read_layer` does.

    Raises tarfile.TarError, EOFError or gzip.BadGzipFile for what is none.
    """
    # "*": of bzip2 and xz tarfile knows itself
    with path.open("rb") as stored, unpacked(stored) as plain, tarfile.open(fileobj=plain, mode="r|*") as tar:
        return read_layer(tar, number, keep=keep, kept_alone=kept_alone)
