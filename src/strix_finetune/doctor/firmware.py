"""Which firmware of the queue scheduler (MES) the GPU has: as the kernel loaded it, else as its file says.

The file's version is where the kernel reads it: the 25th word behind the first 256 bytes, its lower twelve bits
(amdgpu_mes_init_microcode). In the header it is 0. Checked with Debian's firmware-amd-graphics 20260916: 0x92.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from strix_finetune.doctor.host import Host, number

_OFFSET = 256 + 24 * 4
_MASK = 0xFFF
# as the kernel's loader looks: every folder for the plain file, then for the compressed ones
_ENDINGS = ("", ".zst", ".xz")
_ENOUGH = 64 << 10


@dataclass(frozen=True, slots=True)
class Firmware:
    """`version` of the MES firmware; `place` says where that was read. `loaded`: the kernel itself says it."""

    version: int
    place: str
    loaded: bool


def find(host: Host, gfx: str) -> Firmware | None:
    for path in host.glob("sys/kernel/debug/dri/*/amdgpu_firmware_info"):
        text = host.text(path) or ""
        match = re.search(r"^MES feature version: \d+, firmware version: (0x[0-9a-fA-F]{1,8})\s*$", text, re.M)
        if match and (version := int(match[1], 16) & _MASK):
            return Firmware(version, f"/{path}", loaded=True)
    name = _file(gfx)
    release = host.line("proc/sys/kernel/osrelease")
    set_path = host.line("sys/module/firmware_class/parameters/path")
    folders = [set_path] if set_path.startswith("/") else []
    for base in ("lib/firmware", "usr/lib/firmware"):
        own = [f"{base}/updates/{release}", f"{base}/updates", f"{base}/{release}", base]
        folders += own if release else own[1::2]
    for ending in _ENDINGS:
        for folder in folders if name else ():
            path = f"{folder}/amdgpu/{name}{ending}".strip("/")
            packed = host.data(path, _ENOUGH)
            if packed is None:
                continue
            content = _unpacked(packed, ending)
            if len(content) < _OFFSET + 4:
                return None
            version = struct.unpack_from("<I", content, _OFFSET)[0] & _MASK
            return Firmware(version, f"/{path}", loaded=False) if version else None
    return None


def _file(gfx: str) -> str:
    """The file of RDNA 3 and 3.5, whose names follow the GPU's: gfx1151 → gc_11_5_1_mes_2.bin."""
    match = re.fullmatch(r"gfx11(\d)(\d)", gfx)
    return f"gc_11_{number(match[1])}_{number(match[2])}_mes_2.bin" if match else ""


def _unpacked(data: bytes, ending: str) -> bytes:
    """The beginning of a file that may be compressed, and may be cut off here; empty when it is damaged."""
    try:
        if ending == ".xz":
            import lzma

            return lzma.LZMADecompressor().decompress(data, 4096)
        if ending == ".zst":
            from strix_finetune.codeobject.codec import zstd_module

            return bytes(zstd_module().ZstdDecompressor().decompress(data, 4096))
    except Exception:  # noqa: BLE001 (each library has its own error, and a damaged file is no fault of ours)
        return b""
    return data
