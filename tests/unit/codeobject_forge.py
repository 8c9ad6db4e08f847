"""Writes the containers of device code, so that tests can make every kind and every kind of damage."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

from strix_finetune.codeobject.codec import zstd_module

DATA = Path(__file__).parent / "data" / "codeobject"
MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
HOST = "host-x86_64-unknown-linux-gnu-"


def blob(name: str) -> bytes:
    return (DATA / name).read_bytes()


def gfx942() -> bytes:
    """A real code object for gfx942: 4584 bytes, one kernel, wave 64."""
    return blob("bare-gfx942.hsaco")


def gfx1030() -> bytes:
    """A real code object for gfx1030: 3600 bytes, one kernel, wave 64."""
    return blob("bare-gfx1030-wave64.hsaco")


def bundle(entries: dict[str, bytes], align: int = 4096) -> bytes:
    """A plain offload bundle of label → content."""
    table = b""
    content = b""
    head = len(MAGIC) + 8 + sum(24 + len(label) for label in entries)
    start = -(-head // align) * align
    for label, data in entries.items():
        content += b"\0" * (-len(content) % align)
        table += struct.pack("<QQQ", start + len(content), len(data), len(label)) + label.encode()
        content += data
    return (MAGIC + struct.pack("<Q", len(entries)) + table).ljust(start, b"\0") + content


def two_targets() -> bytes:
    return bundle({HOST: b"", "hipv4-amdgcn-amd-amdhsa--gfx942": gfx942(), "hip-amdgcn-amd-amdhsa--gfx1030": gfx1030()})


def squeeze(raw: bytes, method: str) -> bytes:
    return zlib.compress(raw) if method == "zlib" else zstd_module().compress(raw)


def ccob(raw: bytes, version: int = 3, method: str = "zstd", payload: bytes | None = None, **lies: int) -> bytes:
    """A compressed bundle; `lies` replace header fields: number, size, raw_size, version."""
    payload = squeeze(raw, method) if payload is None else payload
    layout = {1: "<4sHHIQ", 2: "<4sHHIIQ", 3: "<4sHHQQQ"}[version]
    size = struct.calcsize(layout) + len(payload)
    number = lies.get("number", {"zlib": 0, "zstd": 1}[method])
    sizes = [lies.get("size", size)] if version > 1 else []
    head = (b"CCOB", lies.get("version", version), number, *sizes, lies.get("raw_size", len(raw)), 0)
    return struct.pack(layout, *head) + payload


def host_elf(sections: dict[str, bytes], machine: int = 62, align: int = 4096) -> bytes:
    """An x86-64 ELF file with these sections and nothing else."""
    names = b"\0"
    rows = [struct.pack("<IIQQQQIIQQ", *[0] * 10)]
    body = b""
    for name, content in {**sections, ".shstrtab": b""}.items():
        at = len(names)
        names += name.encode() + b"\0"
        body += b"\0" * (-(64 + len(body)) % align)
        content = names if name == ".shstrtab" else content
        rows.append(struct.pack("<IIQQQQIIQQ", at, 1, 2, 0, 64 + len(body), len(content), 0, 0, 1, 0))
        body += content
    body += b"\0" * (-len(body) % 8)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", ident, 3, machine, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(rows), len(rows) - 1
    )
    return head + body + b"".join(rows)


def pack(value: Any) -> bytes:
    """MessagePack of plain values, in the widths that the msgpack package chooses."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        if 0 <= value < 0x80:
            return bytes([value])
        for limit, mark, form in (
            (1 << 8, 0xCC, ">B"),
            (1 << 16, 0xCD, ">H"),
            (1 << 32, 0xCE, ">I"),
            (1 << 64, 0xCF, ">Q"),
        ):
            if 0 <= value < limit:
                return bytes([mark]) + struct.pack(form, value)
        return b"\xd3" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        raw = value.encode()
        return _head(len(raw), 0xA0, 32, {1: 0xD9, 2: 0xDA, 4: 0xDB}) + raw
    if isinstance(value, bytes):
        return _head(len(value), 0, 0, {1: 0xC4, 2: 0xC5, 4: 0xC6}) + value
    if isinstance(value, list):
        return _head(len(value), 0x90, 16, {2: 0xDC, 4: 0xDD}) + b"".join(pack(item) for item in value)
    assert isinstance(value, dict)
    pairs = b"".join(pack(key) + pack(item) for key, item in value.items())
    return _head(len(value), 0x80, 16, {2: 0xDE, 4: 0xDF}) + pairs


def _head(size: int, fix: int, fix_limit: int, wide: dict[int, int]) -> bytes:
    if size < fix_limit:
        return bytes([fix | size])
    width = next(width for width in wide if size < 1 << 8 * width)
    return bytes([wide[width]]) + size.to_bytes(width, "big")


def kpack(entries: list[tuple[str, str, bytes]], scheme: str = "zstd-per-kernel", **lies: Any) -> bytes:
    """A kpack archive of (binary, target, code object); `lies` replace keys of its table of contents, or `version`."""
    toc: dict[str, dict[str, Any]] = {}
    for ordinal, (binary, target, data) in enumerate(entries):
        toc.setdefault(binary, {})[target] = {"type": "hsaco", "ordinal": ordinal, "original_size": len(data)}
    table: dict[str, Any] = {
        "format_version": 1,
        "group_name": "test",
        "gfx_arch_family": "x",
        "gfx_arches": [],
        "toc": toc,
    }
    table["compression_scheme"] = scheme
    if scheme == "none":
        blobs, body = [], b""
        for _, _, data in entries:
            blobs.append({"offset": 64 + len(body), "size": len(data)})
            body += data
        table["blobs"] = blobs
    else:
        frames = [squeeze(data, "zstd") for _, _, data in entries]
        body = struct.pack("<I", len(frames)) + b"".join(struct.pack("<I", len(frame)) + frame for frame in frames)
        table |= {"zstd_offset": 64, "zstd_size": len(body)}
    version = lies.pop("version", 1)
    head = struct.pack("<4sIQ", b"KPAK", version, 64 + len(body)).ljust(64, b"\0")
    return head + body + pack(table | lies)


def reference(name: str, paths: list[str]) -> bytes:
    """The content of a .rocm_kpack_ref section."""
    return pack({"kernel_name": name, "kpack_search_paths": paths})
