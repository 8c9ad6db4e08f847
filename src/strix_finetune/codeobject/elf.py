"""The parts of 64-bit little-endian ELF that lead to device code: header, segments, sections, notes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from .faults import Malformed, Unsupported
from .limits import MIB, Ledger
from .source import Source, check_range

MAGIC = b"\x7fELF"
EM_AMDGPU = 224
PT_LOAD, PT_NOTE = 1, 4
PF_X = 1
SHT_NOTE, SHT_NOBITS = 7, 8
SHF_EXECINSTR = 4

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NOTE = struct.Struct("<III")
HEADER_SIZE, SEGMENT_SIZE, SECTION_SIZE = _HEADER.size, _SEGMENT.size, _SECTION.size


@dataclass(frozen=True, slots=True)
class Header:
    """The ELF header; offsets in bytes from the start of the object."""

    machine: int
    flags: int
    abi_version: int
    phoff: int
    phnum: int
    shoff: int
    shnum: int
    shstrndx: int


@dataclass(frozen=True, slots=True)
class Segment:
    type: int
    flags: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Section:
    """A section with content in the file; one without (.bss) has size 0."""

    name: str
    type: int
    flags: int
    offset: int
    size: int


def read_header(source: Source) -> Header:
    if source.size < _HEADER.size:
        raise Malformed(f"an ELF header takes {_HEADER.size} bytes, {source.size} are there")
    fields = _HEADER.unpack(source.read(0, _HEADER.size))
    ident = fields[0]
    if ident[4:6] != b"\x02\x01":
        raise Unsupported("is a 32-bit or big-endian ELF file, which holds no AMD device code")
    phentsize, phnum, shentsize, shnum, shstrndx = fields[9:14]
    if (phnum and phentsize != _SEGMENT.size) or (shnum and shentsize != _SECTION.size):
        raise Malformed("its ELF header names tables with entries of an impossible size")
    return Header(fields[2], fields[7], ident[8], fields[5], phnum, fields[6], shnum, shstrndx)


def read_segments(source: Source, header: Header, ledger: Ledger) -> list[Segment]:
    """All program headers, in file order; a range that is not in the object is refused."""
    ledger.spend_metadata(header.phnum * _SEGMENT.size)
    table = source.read(header.phoff, header.phnum * _SEGMENT.size) if header.phnum else b""
    found: list[Segment] = []
    for kind, flags, offset, _vaddr, _paddr, size, _memsz, _align in _SEGMENT.iter_unpack(table):
        if kind in (PT_LOAD, PT_NOTE) and size:
            check_range(offset, size, source.size, "a segment")
        found.append(Segment(kind, flags, offset, size))
    return found


def read_sections(source: Source, header: Header, ledger: Ledger) -> list[Section]:
    """All section headers with their names, in file order; a range that is not in the object is refused."""
    if not header.shoff:
        return []
    count, names_at = header.shnum, header.shstrndx
    if count == 0 or names_at == 0xFFFF:
        # More than 65279 sections: the true numbers are in the first entry.
        first = _SECTION.unpack(source.read(header.shoff, _SECTION.size))
        count, names_at = count or first[5], first[6] if names_at == 0xFFFF else names_at
    if count > ledger.limits.section_headers:
        raise Malformed(f"names {count} sections, more than {ledger.limits.section_headers}")
    ledger.spend_metadata(count * _SECTION.size)
    rows = list(_SECTION.iter_unpack(source.read(header.shoff, count * _SECTION.size)))
    names = _read_names(source, rows, names_at)
    found: list[Section] = []
    for row in rows:
        kind, flags, offset, size = row[1], row[2], row[4], row[5]
        if kind in (0, SHT_NOBITS):
            size = 0
        name = _name(names, row[0])
        if size:
            check_range(offset, size, source.size, f"section {name or len(found)}")
        found.append(Section(name, kind, flags, offset, size))
    return found


def _read_names(source: Source, rows: list[tuple[int, ...]], index: int) -> bytes:
    if index >= len(rows):
        return b""
    offset, size = rows[index][4], rows[index][5]
    if size > 16 * MIB:
        raise Malformed(f"its table of section names takes {size} bytes")
    return source.read(offset, size)


def _name(names: bytes, start: int) -> str:
    end = names.find(b"\0", start, start + 256)
    return printable(names[start : end if end >= 0 else start + 256])


def notes(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """(owner, type, content) of each note; what is left over at the end and too short for a note is padding."""
    at = 0
    while at + _NOTE.size <= len(data):
        owner_size, content_size, kind = _NOTE.unpack_from(data, at)
        at += _NOTE.size
        content_at = at + (owner_size + 3 & ~3)
        if content_at + content_size > len(data):
            raise Malformed("a note in it is cut off")
        yield data[at : at + owner_size].rstrip(b"\0"), kind, data[content_at : content_at + content_size]
        at = content_at + (content_size + 3 & ~3)


def printable(raw: bytes | str, limit: int = 256) -> str:
    """Text of a file that is safe to show on a terminal."""
    words = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    return "".join(char if char.isprintable() else "?" for char in words[:limit])
