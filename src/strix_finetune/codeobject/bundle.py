"""Clang offload bundles: plain, and compressed (CCOB versions 1 to 3, zlib and zstd), one after the other.

A linker lays the bundles of all translation units into one section, each padded with zeros to a page.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from . import elf
from .amdgpu import read_code_object
from .codec import Decompressor, Method
from .faults import Malformed, Unsupported, within
from .limits import Ledger
from .model import Container
from .source import CHUNK, Part, Source, StreamSource

PLAIN = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED = b"CCOB"
# Four letters alone are found by chance in a gigabyte of anything else.
_START = re.compile(PLAIN + rb"|CCOB[\x01-\x03]\0[\0\x01]\0|\x7fELF\x02\x01\x01")

_ENTRY = struct.Struct("<QQQ")
_CCOB = struct.Struct("<4sHH")
_METHODS: dict[int, Method] = {0: "zlib", 1: "zstd"}
# Version → rest of the header; from 2 on its first field is the size of the whole bundle.
_REST = {1: struct.Struct("<IQ"), 2: struct.Struct("<IIQ"), 3: struct.Struct("<QQQ")}


@dataclass(frozen=True, slots=True)
class _Entry:
    offset: int
    size: int
    label: str


def read_region(region: Source, section: str, ledger: Ledger) -> None:
    """Read every bundle and every bare code object in a section or file; `section` is "" for a file."""
    at = _skip_zeros(region, 0)
    while at < region.size:
        where = f"{section} offset {at}" if section else f"offset {at}"
        head = region.read(at, min(len(PLAIN), region.size - at))
        rest = Part(region, at, region.size - at, "the bundle")
        with within(where):
            if head == PLAIN:
                size = _read_plain(rest, section, at, where, ledger)
            elif head[:4] == COMPRESSED:
                size = _read_compressed(rest, section, at, where, ledger)
            elif head[:4] == elf.MAGIC:
                size = _read_bare(rest, where, ledger)
            else:
                size = _find_next(region, at) - at
                ledger.warn(f"{where}: {size} bytes are no offload bundle")
        at = _skip_zeros(region, at + size)


def _chunks(region: Source, at: int, overlap: int = 0) -> Iterator[tuple[int, bytes]]:
    """The region from `at` on, in pieces that grow: what is looked for is mostly near."""
    step = 4096
    while at < region.size:
        yield at, region.read(at, min(step + overlap, region.size - at))
        at += step
        step = min(2 * step, CHUNK)


def _skip_zeros(region: Source, at: int) -> int:
    for start, chunk in _chunks(region, at):
        if rest := chunk.lstrip(b"\0"):
            return start + len(chunk) - len(rest)
    return region.size


def _find_next(region: Source, at: int) -> int:
    """The next place after `at` that looks like a bundle or code object, or the end of the region."""
    for start, chunk in _chunks(region, at + 1, len(PLAIN) - 1):
        if hit := _START.search(chunk):
            return start + hit.start()
    return region.size


def _read_bare(rest: Source, where: str, ledger: Ledger) -> int:
    """A code object outside any bundle; it ends where its last table or segment does."""
    header = elf.read_header(rest)
    ends = [
        segment.offset + segment.size
        for segment in elf.read_segments(rest, header, ledger)
        if segment.type == elf.PT_LOAD
    ]
    ends += [part.offset + part.size for part in elf.read_sections(rest, header, ledger)]
    ends += [header.shoff + header.shnum * elf.SECTION_SIZE, header.phoff + header.phnum * elf.SEGMENT_SIZE]
    size = max(elf.HEADER_SIZE, *ends)
    read_code_object(Part(rest, 0, min(size, rest.size), "a code object"), "", where, ledger)
    return size


def _read_plain(rest: Source, section: str, at: int, where: str, ledger: Ledger) -> int:
    entries, table_end = _read_table(rest, ledger)
    _read_entries(rest, entries, where, ledger)
    size = max([table_end, *(entry.offset + entry.size for entry in entries)])
    ledger.add_container(Container(section, at, size, size, "plain", len(entries)))
    return size


def _read_compressed(rest: Source, section: str, at: int, where: str, ledger: Ledger) -> int:
    if rest.size < _CCOB.size:
        raise Malformed("the header of a compressed bundle is cut off")
    _magic, version, number = _CCOB.unpack(rest.read(0, _CCOB.size))
    if version not in _REST:
        raise Unsupported(f"is a compressed bundle of version {version}; versions 1 to 3 are known")
    if number not in _METHODS:
        raise Unsupported(f"is a bundle compressed by method {number}; 0 (zlib) and 1 (zstd) are known")
    fields = _REST[version].unpack(rest.read(_CCOB.size, _REST[version].size))
    header_size = _CCOB.size + _REST[version].size
    raw_size = fields[-2]
    size = fields[0] if version > 1 else rest.size
    if not header_size <= size <= rest.size:
        raise Malformed(f"a compressed bundle states a size of {size} bytes, {rest.size} are there")
    method = _METHODS[number]
    decompressor = None

    def restart() -> Decompressor:
        nonlocal decompressor
        decompressor = Decompressor(method, rest, header_size, size - header_size, ledger.limits, "the bundle")
        return decompressor

    stream = StreamSource(restart, raw_size, ledger, "the bundle's content")
    head = stream.read(0, min(len(PLAIN), raw_size))
    if head != PLAIN:
        raise Malformed("a compressed bundle holds something that is no offload bundle")
    entries, _ = _read_table(stream, ledger)
    _read_entries(stream, entries, where, ledger)
    stream.finish()
    if version == 1 and decompressor is not None:
        size = header_size + decompressor.consumed
    encoding = f"ccob v{version} {method}"
    ledger.add_container(Container(section, at, size, raw_size, encoding, len(entries)))
    return size


def _read_table(bundle: Source, ledger: Ledger) -> tuple[list[_Entry], int]:
    """The entries of a bundle and where their table ends."""
    at = len(PLAIN) + 8
    count = int.from_bytes(bundle.read(len(PLAIN), 8), "little")
    if count > ledger.limits.entries:
        raise Malformed(f"a bundle names {count} entries, more than {ledger.limits.entries}")
    entries = []
    for _ in range(count):
        offset, size, label_size = _ENTRY.unpack(bundle.read(at, _ENTRY.size))
        if label_size > 1024:
            raise Malformed(f"a bundle names an entry in {label_size} bytes")
        label = elf.printable(bundle.read(at + _ENTRY.size, label_size))
        if offset + size > bundle.size:
            raise Malformed(
                f"entry {label} ends at byte {offset + size} of {bundle.size}: the bundle is cut off or damaged"
            )
        entries.append(_Entry(offset, size, label))
        at += _ENTRY.size + label_size
    ledger.spend_metadata(at)
    return entries, at


def _read_entries(bundle: Source, entries: list[_Entry], where: str, ledger: Ledger) -> None:
    """In order of their place, so that a stream is passed through once. An entry of size 0 is no code."""
    for entry in sorted(entries, key=lambda item: item.offset):
        if entry.size and not entry.label.startswith("host-"):
            part = Part(bundle, entry.offset, entry.size, f"entry {entry.label}")
            with within(entry.label):
                read_code_object(part, entry.label, where, ledger)
