"""What an image must contain by its lock and its definitions, and how it differs from what is installed in it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strix_finetune.lockmodel import Lock, normalize
from strix_finetune.model import Keyed, Node, RenderedLayer, Stack
from strix_finetune.schema import Archive
from strix_finetune.supply import tree as trees
from strix_finetune.supply.model import Component, Patch
from strix_finetune.supply.tree import Tree

# where this project installs Python distributions; those of Debian's packages are Debian's business
_VENV = "/opt/venv/"
_MARKER = re.compile(r"^Marker: ([^:\s]+): (.+)$", re.M)
_NUMBERS = re.compile(r"(\d+(?:\.\d+)+)")
_MODULES = re.compile(r"(?:site|dist)-packages/")


@dataclass(frozen=True, slots=True)
class Marked:
    """A patch of a Python package: what it is, a file that it changes, and the text that only a patched file has."""

    patch: Patch
    file: str
    text: str

    @property
    def package(self) -> str:
        """The distribution that has the file, by the name of its folder."""
        return normalize(self.file.partition("/")[0])


@dataclass(frozen=True, slots=True)
class Source:
    """Something compiled from a source archive: its layer and name, the archive, and the patches on it."""

    layer: str
    name: str
    version: str
    archive: Archive
    patches: tuple[Patch, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """What must be in an image. `debs`, `dists`: name → version.

    `hashes`, `urls`: of distributions that have one locked file. `date`: of the archive that it was made from.
    """

    date: str
    debs: Mapping[str, str]
    dists: Mapping[str, str]
    hashes: Mapping[str, str]
    urls: Mapping[str, str]
    sources: tuple[Source, ...]
    marked: tuple[Marked, ...]

    @property
    def wanted(self) -> frozenset[str]:
        """Files below site-packages that tell whether the patches are in."""
        return frozenset(mark.file for mark in self.marked)


def expected(stack: Stack, layers: Sequence[Keyed], lock: Lock, layer: str) -> Expected:
    """What the image of a layer holds: its own things and those of its parents, builders left out."""
    lineage = {node.name for node in stack.lineage(layer)}
    debs: dict[str, str] = {}
    dists: dict[str, str] = {}
    hashes: dict[str, str] = {}
    urls: dict[str, str] = {}
    sources: list[Source] = []
    marked: list[Marked] = []
    for keyed in layers:
        node = keyed.layer.node
        if node.name not in lineage:
            continue
        inputs = keyed.layer.inputs
        debs |= {name[4:]: version for name, version in inputs.items() if name.startswith("apt ")}
        for name in node.pip:
            if f"pip {name}" in inputs:
                held = lock.pip[name]
                dists |= held.packages
                hashes |= {dist: next(iter(all_)) for (dist, _), all_ in held.files.items() if len(all_) == 1}
        for name in node.wheels:
            for wheel in lock.wheels[name].wheels:
                if f"wheel {wheel.name}" in inputs:
                    dists[wheel.name] = wheel.version
                    hashes[wheel.name], urls[wheel.name] = wheel.sha256, wheel.url
        sources += _sources(keyed.layer)
        marked += _marked(keyed.layer)
    return Expected(lock.apt.date, debs, dists, hashes, urls, tuple(sources), tuple(marked))


def _sources(layer: RenderedLayer) -> Iterator[Source]:
    node = layer.node
    for name, archive in node.archives.items():
        if f"archive {name}" in layer.inputs:
            called = node.name if name == "source" else name
            patches = tuple(patch for patch, _ in _patches(layer)) if name == "source" else ()
            yield Source(node.name, called, _version(node, archive, called), archive, patches)


def _version(node: Node, archive: Archive, name: str) -> str:
    """The version of a source: the layer's variable where the layer is about nothing else, else the file's."""
    if name == node.name and node.vars.get("version"):
        return str(node.vars["version"])
    found = _NUMBERS.search(archive.url.rsplit("/", 1)[-1])
    return found[1] if found else archive.sha256[:12]


def _patches(layer: RenderedLayer) -> Iterator[tuple[Patch, Path]]:
    """The patches that the Dockerfile applies: a channel may have no use for those of a layer."""
    for path in layer.node.patches:
        if path.name in layer.dockerfile:
            yield Patch(path.name, hashlib.sha256(path.read_bytes()).hexdigest()), path


def _marked(layer: RenderedLayer) -> Iterator[Marked]:
    """The marks of patches that change Python packages; those of a source archive are told by its manifest."""
    if "source" in layer.node.archives:
        return
    for patch, path in _patches(layer):
        header = path.read_text("utf-8", "replace").partition("\n--- ")[0]
        for file, text in _MARKER.findall(header):
            yield Marked(patch, file, text.strip())


def differences(wanted: Expected, found: Sequence[Component], tree: Tree) -> list[str]:
    """How an image differs from what it must be: one sentence for each difference, empty where there is none."""
    installed = {item.name: item.version for item in found if item.kind in ("deb", "own")}
    faults = [
        f"the Debian package {name} is {installed.get(name, 'missing')}, locked is {version}"
        for name, version in sorted(wanted.debs.items())
        if installed.get(name) != version
    ]
    mine = {
        item.name: item.version
        for item in found
        if item.kind == "pypi" and item.facts.get("place", "").startswith(_VENV)
    }
    faults += [
        f"the Python package {name} is {mine.get(name, 'missing')}, locked is {version}"
        for name, version in sorted(wanted.dists.items())
        if not _same(mine.get(name), version)
    ]
    faults += [
        f"the Python package {name} {version} is in no lock"
        for name, version in sorted(mine.items())
        if name not in wanted.dists
    ]
    for mark in wanted.marked:
        held = [text for path, text in tree.files.items() if _below_modules(path) == mark.file]
        if not any(mark.text.encode() in text for text in held):
            faults.append(f"the patch {mark.patch.name} is not in {mark.file}")
    for source in wanted.sources:
        if source.name == "rccl":
            faults += _rccl(source, tree)
    return faults


def _same(installed: str | None, locked: str) -> bool:
    if installed is None or installed == locked:
        return installed == locked
    from packaging.version import InvalidVersion, Version

    try:
        return Version(installed) == Version(locked)
    except InvalidVersion:
        return False


def _below_modules(path: str) -> str:
    found = _MODULES.search(path)
    return path[found.end() :] if found else ""


def _rccl(source: Source, tree: Tree) -> Iterator[str]:
    """RCCL says itself what it was made of, and which library that gave."""
    said = rccl_manifest(tree)
    if not said:
        yield f"RCCL is to be in the image, and there is no /{trees.RCCL_MANIFEST} that can be read"
        return
    if said.get("source", {}).get("sha256") != source.archive.sha256:
        yield f"RCCL was made of another source than {source.archive.url.rsplit('/', 1)[-1]}"
    made = [(patch.get("file"), patch.get("sha256")) for patch in said.get("patches", ())]
    if made != [(patch.name, patch.sha256) for patch in source.patches]:
        yield "RCCL was made with other patches than those of its series"
    library = said.get("library", {})
    if tree.digests.get(f"opt/rccl/{library.get('file')}") != library.get("sha256"):
        yield f"the library /opt/rccl/{library.get('file')} is not the one that was compiled"


def rccl_manifest(tree: Tree) -> dict[str, Any]:
    """What RCCL's build wrote down, empty where there is none or somebody else's text."""
    try:
        said = json.loads(tree.files.get(trees.RCCL_MANIFEST, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
