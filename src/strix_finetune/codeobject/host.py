"""A host library or program: which of its sections hold device code, or say where it was moved to."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from . import elf
from .amdgpu import read_code_object
from .bundle import read_region
from .faults import Malformed, within
from .kpack import MAGIC as KPACK
from .kpack import read_kpack, read_reference
from .limits import MIB, Ledger
from .model import SideReference
from .source import FileSource, Part, Source

_FATBIN = ".hip_fatbin"
_REFERENCE = ".rocm_kpack_ref"
_UNLINKED = re.compile(r"__CLANG_OFFLOAD_BUNDLE__(?P<label>[a-z0-9]+-(amdgcn|spirv64)-.+)")
_NEW_DRIVER = ".llvm.offloading"
_PLACEHOLDER = "@GFXARCH@"


def read_host(
    binary: Source, header: elf.Header, path: str | None, ledger: Ledger
) -> tuple[tuple[str, ...], tuple[SideReference, ...]]:
    """Read the device code of a host ELF; returns the names of the sections that held some, and its side references.

    `path` is where the binary lies, to find its side files from; None when it has no folder (a member of a wheel).
    """
    sections: list[str] = []
    references: list[SideReference] = []
    listed = sorted(elf.read_sections(binary, header, ledger), key=lambda item: item.offset)
    if not listed:
        ledger.warn("it has no section table, so its device code cannot be found")
    for section in listed:
        if not section.size:
            continue
        content = Part(binary, section.offset, section.size, section.name)
        before = len(ledger.objects)
        if section.name == _FATBIN or section.name.startswith(_FATBIN + "."):
            read_region(content, section.name, ledger)
        elif unlinked := _UNLINKED.fullmatch(section.name):
            read_code_object(content, unlinked["label"], section.name, ledger)
        elif section.name == _REFERENCE:
            references.append(_follow(content, path, ledger))
        elif section.name == _NEW_DRIVER:
            ledger.warn(f"{_NEW_DRIVER} holds code that is not linked yet; it is not looked into")
        if len(ledger.objects) > before and section.name != _REFERENCE:
            sections.append(section.name)
    return tuple(dict.fromkeys(sections)), tuple(references)


def _follow(content: Source, path: str | None, ledger: Ledger) -> SideReference:
    if content.size > MIB:
        raise Malformed(f"{_REFERENCE} takes {content.size} bytes")
    with within(_REFERENCE):
        reference = read_reference(content.read(0, content.size))
    if path is None:
        return reference
    found = side_files(reference, Path(path).parent)
    if not found:
        ledger.warn(f"its device code is in side files and none of {', '.join(reference.search_paths)} is there")
    for name in found:
        with FileSource(name, ledger) as archive:
            if archive.read(0, min(4, archive.size)) != KPACK:
                raise Malformed(f"its side file {name} is no kpack archive")
            with within(f"its side file {name}"):
                count = read_kpack(archive, ledger, prefix=f"{Path(name).name}: ", only=reference.name)
        if not count:
            ledger.warn(f"its side file {name} has no code for {reference.name}")
    return replace(reference, found=found)


def side_files(reference: SideReference, folder: Path) -> tuple[str, ...]:
    """The side files of a binary in `folder` that exist, for whatever target, in a stable order."""
    found: dict[str, None] = {}
    for pattern in reference.search_paths:
        # A file names its neighbours; it must not make the reader open just anything.
        if pattern.startswith("/") or not pattern.endswith(".kpack"):
            continue
        place = folder / pattern
        before, mark, after = place.name.partition(_PLACEHOLDER)
        matcher = re.compile(re.escape(before) + (r"gfx[0-9a-z:+-]+" if mark else "") + re.escape(after))
        try:
            here = sorted(item for item in place.parent.iterdir() if matcher.fullmatch(item.name) and item.is_file())
        except (OSError, ValueError):
            continue
        found.update(dict.fromkeys(str(item) for item in here))
    return tuple(found)
