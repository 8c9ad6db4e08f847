"""kpack archives: the side files that ROCm 7.13 and later keep device code in, one a target.

Layout: "KPAK", u32 version (1), u64 offset of the table of contents; blobs; the table, MessagePack to the end.
The table's "toc" maps a binary's name (with "#" and the number of its translation unit) to targets to
{ordinal, original_size}. Scheme "none": "blobs" lists offset and size an ordinal. Scheme "zstd-per-kernel": at
"zstd_offset" a u32 count, then for each ordinal a u32 size and a zstd frame.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from . import elf, msgpack
from .amdgpu import read_code_object
from .codec import Decompressor
from .faults import LimitExceeded, Malformed, Unsupported, within
from .limits import Ledger
from .model import Container, SideReference
from .source import Part, Source, StreamSource, check_range

MAGIC = b"KPAK"
_HEADER = struct.Struct("<4sIQ")
_ZSTD, _NONE = "zstd-per-kernel", "none"


@dataclass(frozen=True, slots=True)
class _Entry:
    binary: str
    target: str
    ordinal: int
    size: int | None


@dataclass(slots=True)
class _Contents:
    """The table of contents as far as it is needed."""

    scheme: str = _NONE
    zstd_offset: int = 0
    blobs: list[tuple[int, int]] = field(default_factory=list)
    entries: list[_Entry] = field(default_factory=list)


def read_kpack(archive: Source, ledger: Ledger, *, prefix: str = "", only: str | None = None) -> int:
    """Read an archive's code objects and return how many there were; `only` those of one binary, when given."""
    if archive.size < _HEADER.size:
        raise Malformed("the header of a kpack archive is cut off")
    _magic, version, offset = _HEADER.unpack(archive.read(0, _HEADER.size))
    if version != 1:
        raise Unsupported(f"is a kpack archive of version {version}; version 1 is known")
    size = archive.size - offset
    if not _HEADER.size <= offset < archive.size:
        raise Malformed(
            f"its table of contents is said to begin at byte {offset} of {archive.size}: the file is cut off"
        )
    if size > ledger.limits.one_table:
        raise LimitExceeded(f"its table of contents takes {size} bytes")
    ledger.spend_metadata(size)
    contents = _read_contents(archive.read(offset, size), ledger)
    spans = _frame_spans(archive, contents, ledger) if contents.scheme == _ZSTD else contents.blobs
    wanted = [
        entry
        for entry in contents.entries
        if only is None or entry.binary.rpartition("#")[0] == only or entry.binary == only
    ]
    for entry in sorted(wanted, key=lambda item: item.ordinal):
        where = f"{prefix}{entry.binary}"
        with within(f"{where} for {entry.target}"):
            _read_entry(archive, contents, spans, entry, where, ledger)
    if only is None:
        raw = sum(entry.size or 0 for entry in wanted)
        ledger.add_container(Container("", 0, archive.size, raw, f"kpack {contents.scheme}", len(wanted)))
    return len(wanted)


def _read_entry(
    archive: Source, contents: _Contents, spans: list[tuple[int, int]], entry: _Entry, where: str, ledger: Ledger
) -> None:
    if entry.ordinal >= len(spans):
        raise Malformed(f"is said to be blob {entry.ordinal} of {len(spans)}")
    offset, size = spans[entry.ordinal]
    check_range(offset, size, archive.size, "its blob")
    if contents.scheme == _NONE:
        if entry.size not in (None, size):
            raise Malformed(f"takes {size} bytes, its entry says {entry.size}")
        read_code_object(Part(archive, offset, size, "its blob"), entry.target, where, ledger)
        return
    if entry.size is None:
        raise Malformed("has no original size")
    blob = Part(archive, offset, size, "its blob")
    stream = StreamSource(
        lambda: Decompressor("zstd", blob, 0, size, ledger.limits, "its blob"), entry.size, ledger, "its content"
    )
    read_code_object(stream, entry.target, where, ledger)
    stream.finish()


def _frame_spans(archive: Source, contents: _Contents, ledger: Ledger) -> list[tuple[int, int]]:
    """(offset, size) of each zstd frame; only the sizes are read."""
    at = contents.zstd_offset
    count = int.from_bytes(archive.read(at, 4), "little")
    if count > ledger.limits.objects:
        raise LimitExceeded(f"holds {count} blobs, more than {ledger.limits.objects}")
    at += 4
    spans: list[tuple[int, int]] = []
    for _ in range(count):
        size = int.from_bytes(archive.read(at, 4), "little")
        if at + 4 + size > archive.size:
            raise Malformed(f"blob {len(spans)} ends behind the end of the file: it is cut off")
        spans.append((at + 4, size))
        at += 4 + size
    return spans


def _read_contents(data: bytes, ledger: Ledger) -> _Contents:
    contents = _Contents()
    pairs, at = msgpack.map_size(data, 0)
    for _ in range(pairs):
        key, at = msgpack.text(data, at)
        if key == "compression_scheme":
            scheme, at = msgpack.text(data, at)
            if scheme not in (_NONE, _ZSTD):
                raise Unsupported(f"is packed by scheme {elf.printable(scheme or '?')}; {_NONE} and {_ZSTD} are known")
            contents.scheme = scheme
        elif key == "zstd_offset":
            offset, at = msgpack.unsigned(data, at)
            contents.zstd_offset = offset or 0
        elif key == "blobs":
            contents.blobs, at = _read_blobs(data, at, ledger)
        elif key == "toc":
            contents.entries, at = _read_toc(data, at, ledger)
        else:
            at = msgpack.skip(data, at)
    return contents


def _read_blobs(data: bytes, at: int, ledger: Ledger) -> tuple[list[tuple[int, int]], int]:
    count, at = msgpack.array_size(data, at)
    found = []
    for _ in range(_bounded(count, ledger)):
        values, at = _numbers(data, at)
        found.append((values.get("offset", 0), values.get("size", 0)))
    return found, at


def _read_toc(data: bytes, at: int, ledger: Ledger) -> tuple[list[_Entry], int]:
    found: list[_Entry] = []
    binaries, at = msgpack.map_size(data, at)
    for _ in range(_bounded(binaries, ledger)):
        binary, at = msgpack.text(data, at)
        targets, at = msgpack.map_size(data, at)
        for _ in range(_bounded(len(found) + targets, ledger) - len(found)):
            target, at = msgpack.text(data, at)
            values, at = _numbers(data, at)
            if "ordinal" not in values:
                raise Malformed("an entry of its table of contents has no ordinal")
            name, arch = elf.printable(binary or ""), elf.printable(target or "")
            found.append(_Entry(name, arch, values["ordinal"], values.get("original_size")))
    return found, at


def _bounded(count: int, ledger: Ledger) -> int:
    if count > ledger.limits.objects:
        raise LimitExceeded(f"names {count} code objects, more than {ledger.limits.objects}")
    return count


def _numbers(data: bytes, at: int) -> tuple[dict[str, int], int]:
    """The numbers of a map of words to values; what is no number is passed over."""
    found = {}
    pairs, at = msgpack.map_size(data, at)
    for _ in range(pairs):
        key, at = msgpack.text(data, at)
        value, at = msgpack.unsigned(data, at)
        if key in ("ordinal", "original_size", "offset", "size") and value is not None:
            found[key] = value
    return found, at


def read_reference(data: bytes) -> SideReference:
    """The content of a `.rocm_kpack_ref` section: where a binary's device code was moved to."""
    name, paths = "", []
    pairs, at = msgpack.map_size(data, 0)
    for _ in range(pairs):
        key, at = msgpack.text(data, at)
        if key == "kernel_name":
            value, at = msgpack.text(data, at)
            name = value or ""
        elif key == "kpack_search_paths":
            count, at = msgpack.array_size(data, at)
            if count > 64:
                raise Malformed(f"it names {count} places for its side files")
            for _ in range(count):
                value, at = msgpack.text(data, at)
                paths.append(value or "")
        else:
            at = msgpack.skip(data, at)
    if not name or not paths:
        raise Malformed("it does not say where its device code is")
    return SideReference(elf.printable(name), tuple(elf.printable(path, 4096) for path in paths))
