"""An AMDGPU code object: which target its flags name, and what its metadata says about its kernels.

Numbers are those of LLVM's AMDGPU backend (ELF header flags, code object versions 2 to 6).
"""

from __future__ import annotations

import re

from . import elf, msgpack
from .faults import LimitExceeded, Malformed
from .limits import Ledger
from .model import CodeObject, Feature, Kind
from .source import Source, check_range

_NT_METADATA = 32

# EF_AMDGPU_MACH, the low byte of e_flags.
_MACHINES = {
    0x20: "gfx600", 0x21: "gfx601", 0x3A: "gfx602",
    0x22: "gfx700", 0x23: "gfx701", 0x24: "gfx702", 0x25: "gfx703", 0x26: "gfx704", 0x3B: "gfx705",
    0x28: "gfx801", 0x29: "gfx802", 0x2A: "gfx803", 0x3C: "gfx805", 0x2B: "gfx810",
    0x2C: "gfx900", 0x2D: "gfx902", 0x2E: "gfx904", 0x2F: "gfx906", 0x30: "gfx908", 0x31: "gfx909",
    0x32: "gfx90c", 0x3F: "gfx90a", 0x40: "gfx940", 0x4B: "gfx941", 0x4C: "gfx942", 0x4F: "gfx950",
    0x33: "gfx1010", 0x34: "gfx1011", 0x35: "gfx1012", 0x42: "gfx1013",
    0x36: "gfx1030", 0x37: "gfx1031", 0x38: "gfx1032", 0x39: "gfx1033", 0x3E: "gfx1034", 0x3D: "gfx1035",
    0x45: "gfx1036",
    0x41: "gfx1100", 0x46: "gfx1101", 0x47: "gfx1102", 0x44: "gfx1103",
    0x43: "gfx1150", 0x4A: "gfx1151", 0x55: "gfx1152", 0x58: "gfx1153", 0x57: "gfx1154",
    0x5D: "gfx1170", 0x5E: "gfx1171", 0x5C: "gfx1172",
    0x48: "gfx1200", 0x4E: "gfx1201", 0x49: "gfx1250", 0x5A: "gfx1251", 0x50: "gfx1310",
    0x51: "gfx9-generic", 0x5F: "gfx9-4-generic", 0x52: "gfx10-1-generic", 0x53: "gfx10-3-generic",
    0x54: "gfx11-generic", 0x62: "gfx11-7-generic", 0x59: "gfx12-generic", 0x5B: "gfx12-5-generic",
    0x63: "gfx13-generic",
}  # fmt: skip

# EI_ABIVERSION → code object version.
_VERSIONS = {0: 2, 1: 3, 2: 4, 3: 5, 4: 6}
_FEATURES: tuple[Feature, ...] = ("unsupported", "any", "off", "on")

_LABEL = re.compile(r"-(?P<target>gfx[0-9a-f]+(?:-[0-9]+)*(?:-generic)?|amdgcnspirv)(?P<features>(?::[a-z]+[+-])*)$")


def read_code_object(source: Source, label: str, where: str, ledger: Ledger) -> None:
    """Read what a bundle entry, an archive member or a bare file holds and add it to the ledger.

    `label` is the bundle's name for it and may be empty; the flags of an ELF win over it, with a warning.
    """
    head = source.read(0, min(4, source.size))
    if head == elf.MAGIC:
        header = elf.read_header(source)
        if header.machine == elf.EM_AMDGPU:
            ledger.add(_read_elf(source, header, label, where, ledger))
            return
    kind: Kind = {b"BC\xc0\xde": "bitcode", b"\xde\xc0\x17\x0b": "bitcode", b"\x03\x02\x23\x07": "spirv"}.get(  # type: ignore[assignment]
        head, "unknown"
    )
    target, xnack, sramecc = parse_label(label)
    if kind == "unknown":
        ledger.warn(f"{where}: entry {label or '(no label)'} is no AMD code object")
    ledger.add(CodeObject(target, xnack, sramecc, (), source.size, 0, 0, kind, 0, label, where))


def parse_label(label: str) -> tuple[str, Feature, Feature]:
    """Target, xnack and sramecc of a bundle entry's id such as "hipv4-amdgcn-amd-amdhsa--gfx90a:xnack+"."""
    found = _LABEL.search("-" + label)
    if not found:
        return label, "any", "any"
    values: dict[str, Feature] = {}
    for word in found["features"].split(":")[1:]:
        values[word[:-1]] = "on" if word.endswith("+") else "off"
    return found["target"], values.get("xnack", "any"), values.get("sramecc", "any")


def _read_elf(source: Source, header: elf.Header, label: str, where: str, ledger: Ledger) -> CodeObject:
    abi = _VERSIONS.get(header.abi_version, 0)
    check_range(header.shoff, header.shnum * elf.SECTION_SIZE, source.size, "its section table")
    xnack, sramecc = _features(header.flags, abi)
    code_size, ranges = _layout(source, header, ledger)
    kernels, waves, stated = _metadata(source, ranges, ledger)
    labelled = parse_label(label)[0] if label else ""
    target = _MACHINES.get(header.flags & 0xFF, "")
    if not target:
        target = labelled or stated or f"unknown-0x{header.flags & 0xFF:02x}"
        ledger.warn(f"{where}: its flags 0x{header.flags:x} name no known target; {target} is what stands beside it")
    for word, origin in ((labelled, "is labelled"), (stated, "says in its metadata that it is for")):
        if word and word != target:
            ledger.warn(f"{where}: code for {target} {origin} {word}")
    return CodeObject(target, xnack, sramecc, waves, source.size, code_size, kernels, "elf", abi, label, where)


def _features(flags: int, abi: int) -> tuple[Feature, Feature]:
    if abi >= 4:
        return _FEATURES[flags >> 8 & 3], _FEATURES[flags >> 10 & 3]
    # Version 3 has one bit each, and cannot tell "off" from "does not matter".
    return ("on" if flags & 0x100 else "any"), ("on" if flags & 0x200 else "any")


def _layout(source: Source, header: elf.Header, ledger: Ledger) -> tuple[int, list[tuple[int, int]]]:
    """Bytes of machine code, and where the notes lie. An unlinked object has sections instead of segments."""
    if header.phnum:
        segments = elf.read_segments(source, header, ledger)
        code = sum(part.size for part in segments if part.type == elf.PT_LOAD and part.flags & elf.PF_X)
        return code, [(part.offset, part.size) for part in segments if part.type == elf.PT_NOTE]
    sections = elf.read_sections(source, header, ledger)
    code = sum(part.size for part in sections if part.flags & elf.SHF_EXECINSTR)
    return code, [(part.offset, part.size) for part in sections if part.type == elf.SHT_NOTE]


def _metadata(source: Source, ranges: list[tuple[int, int]], ledger: Ledger) -> tuple[int, tuple[int, ...], str]:
    kernels, waves, stated = 0, set[int](), ""
    for offset, size in sorted(ranges):
        if size > ledger.limits.one_table:
            raise LimitExceeded(f"its notes take {size} bytes")
        ledger.spend_metadata(size)
        for owner, kind, content in elf.notes(source.read(offset, size)):
            if owner == b"AMDGPU" and kind == _NT_METADATA:
                count, found, name = _walk(content)
                kernels += count
                waves |= found
                stated = name or stated
    return kernels, tuple(sorted(waves)), stated


def _walk(data: bytes) -> tuple[int, set[int], str]:
    """Kernels, their wave sizes, and the target that the metadata names."""
    kernels, waves, stated = 0, set[int](), ""
    pairs, at = msgpack.map_size(data, 0)
    for _ in range(pairs):
        key, at = msgpack.text(data, at)
        if key == "amdhsa.kernels":
            count, at = msgpack.array_size(data, at)
            for _ in range(count):
                wave, at = _walk_kernel(data, at)
                kernels += 1
                if wave is not None:
                    waves.add(wave)
        elif key == "amdhsa.target":
            name, at = msgpack.text(data, at)
            stated = parse_label(elf.printable(name or ""))[0]
        else:
            at = msgpack.skip(data, at)
    return kernels, waves, stated


def _walk_kernel(data: bytes, at: int) -> tuple[int | None, int]:
    wave = None
    pairs, at = msgpack.map_size(data, at)
    for _ in range(pairs):
        key, at = msgpack.text(data, at)
        if key == ".wavefront_size":
            wave, at = msgpack.unsigned(data, at)
            if wave not in (32, 64):
                raise Malformed(f"a kernel in it states a wave size of {wave}")
        else:
            at = msgpack.skip(data, at)
    return wave, at
