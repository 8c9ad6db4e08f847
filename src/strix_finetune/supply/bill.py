"""The bill of materials of an image: what is installed in it, beside what its lock says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from strix_finetune import names
from strix_finetune.engine.base import Engine, Image
from strix_finetune.errors import Problem, WorkError
from strix_finetune.supply import debs, dists, locked
from strix_finetune.supply import tree as trees
from strix_finetune.supply.licences import Licence
from strix_finetune.supply.locked import Expected, Source
from strix_finetune.supply.model import Bill, Component, Patch, purl

_SHOWN = 8
_VERSION = re.compile(rb'^__version__ = "([^"]+)"', re.M)
# what a folder without metadata of its own is known to be under
_SOURCES = {"rccl": Licence("BSD-3-Clause"), "llama": Licence("MIT")}


@dataclass(frozen=True, slots=True)
class Found:
    """A bill, and how the image differs from its lock: empty where it does not, or was not compared.

    `config`: digest of the image's configuration, by which registries know it; its layers are named in there.
    """

    bill: Bill
    differences: tuple[str, ...]
    config: str


def make(engine: Engine, image: Image, wanted: Expected | None) -> Found:
    """Read an image and compare it with what must be in it, where that is known.

    Raises EngineError when it cannot be read, WorkError where it has no list of Debian packages.
    """
    tree = trees.read(engine, image.id, wanted.wanted if wanted else ())
    hashes, urls = (wanted.hashes, wanted.urls) if wanted else ({}, {})
    found = [*debs.components(tree), *dists.components(tree, hashes, urls)]
    faults = locked.differences(wanted, found, tree) if wanted else []
    if wanted:
        found = [_patched(component, wanted) for component in found]
        found += [_source(source, tree) for source in wanted.sources]
    else:
        found += _manifest(tree)
    found += _train(tree)
    labels = image.labels
    bill = Bill(
        labels.get(names.LAYER, ""),
        labels.get(names.TARGET, ""),
        labels.get(names.CHANNEL, ""),
        labels.get(names.KEY, ""),
        wanted.date if wanted else "1970-01-01T00:00:00Z",
        tuple(sorted(found, key=lambda component: (component.kind, component.ref))),
        checked=wanted is not None,
        system=debs.system(tree),
    )
    return Found(bill, tuple(faults), tree.config)


def refuse(found: Found, ref: str) -> Bill:
    """The bill, where the image is what its lock says. Raises WorkError that names the differences."""
    faults = found.differences
    if faults:
        more = f", and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise WorkError(
            Problem(
                f"the image {ref} is not what its lock says: {'; '.join(faults[:_SHOWN])}{more}",
                cure="build it again with 'strix-finetune build --rebuild'",
            )
        )
    return found.bill


def _patched(component: Component, wanted: Expected) -> Component:
    patches = tuple({mark.patch: None for mark in wanted.marked if mark.package == component.name})
    return replace(component, patches=patches) if component.kind == "pypi" and patches else component


def _source(source: Source, tree: trees.Tree) -> Component:
    archive = source.archive
    address = purl("generic", source.name, source.version, checksum=f"sha256:{archive.sha256}")
    facts = {"layer": source.layer, "source": archive.url}
    if source.name == "rccl":
        facts |= _compiled(tree)
    licence = _SOURCES.get(source.name)
    return Component(
        "source", source.name, source.version, address, licence, archive.sha256, "", source.patches, facts=facts
    )


def _compiled(tree: trees.Tree) -> dict[str, str]:
    said = locked.rccl_manifest(tree)
    library = said.get("library")
    facts: dict[str, str] = {
        name: str(said[name]) for name in ("api", "target", "functions", "compiler") if name in said
    }
    if isinstance(library, dict):
        facts |= {"library": f"/opt/rccl/{library.get('file')}", "library sha256": str(library.get("sha256"))}
    return facts


def _manifest(tree: trees.Tree) -> Iterator[Component]:
    """RCCL by what its own build wrote down: all that is known of it where the lock is another's."""
    said = locked.rccl_manifest(tree)
    source = said.get("source")
    if not isinstance(source, dict):
        return
    sha256, version = str(source.get("sha256", "")), str(said.get("version", ""))
    patches = tuple(Patch(str(item.get("file")), str(item.get("sha256"))) for item in said.get("patches", ()))
    address = purl("generic", "rccl", version, checksum=f"sha256:{sha256}")
    facts = {"layer": "rccl", "source": str(source.get("file", "")), **_compiled(tree)}
    yield Component("source", "rccl", version, address, _SOURCES["rccl"], sha256, "", patches, facts=facts)


def _train(tree: trees.Tree) -> Iterator[Component]:
    """The train command, which is copied into the image."""
    found = _VERSION.search(tree.files.get(trees.TRAIN, b""))
    if found:
        version = found[1].decode()
        facts = {"place": "/opt/strix-finetune/lib/strix_train"}
        address = purl("generic", "strix-train", version)
        yield Component("own", "strix-train", version, address, Licence("Apache-2.0"), facts=facts)
