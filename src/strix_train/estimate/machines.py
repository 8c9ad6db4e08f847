"""Machines that models are trained on: what their memory holds and how fast they multiply, by name or as found here.

Nothing imports torch: AMD's GPUs are read from /sys, NVIDIA's are asked of nvidia-smi.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from strix_train.devicerules import UNIFIED, memory_share
from strix_train.errors import InputError, Problem, nearest

if TYPE_CHECKING:
    from strix_train.device import Device

GIB = 2**30
Kind = Literal["cpu", "rocm", "cuda"]


@dataclass(frozen=True, slots=True)
class Machine:
    """`memory`: bytes that a GPU, or a process on the CPU, may use. `peak`: 16-bit operations a second, 0 unknown.

    `system`: bytes of the system's memory where it is the GPU's as well, else 0. `measured`: whether times on this kind
    of machine were measured by this project. `share`: of the peak that large products reach. `bandwidth`: of the
    memory, in bytes a second, and `link`: to the system's memory. `launch`: how slowly the host starts kernels.
    """

    name: str
    kind: Kind
    memory: int
    peak: float = 0.0
    arch: str = ""
    system: int = 0
    measured: bool = False
    share: float = 0.5
    bandwidth: float = 1e12
    link: float = 25e9
    launch: float = 1.0
    half: bool = True

    @property
    def is_gpu(self) -> bool:
        """Whether this is a GPU."""
        return self.kind != "cpu"

    @property
    def unified(self) -> bool:
        """Whether the system lives in the GPU's memory."""
        return self.system > 0

    @property
    def usable(self) -> int:
        """Bytes that training may take: on unified memory the system keeps its part, elsewhere the driver a little."""
        if self.unified:
            share = memory_share(self.memory, self.system, 0)
            return int(self.memory * (share or 1.0))
        return self.memory - (GIB if self.is_gpu else 0)


def _halo(gib: int, gtt: float) -> Machine:
    name = f"Strix Halo, {gib} GB of memory"
    return Machine(
        name, "rocm", int(gtt * GIB), 59.4e12, "gfx1151", gib * GIB, share=0.4, bandwidth=256e9, link=84e9, launch=1.5
    )


# Peaks and bandwidths are the vendors' figures, peaks for dense bf16. Memory of Strix Halo: what the driver gives the
# GPU when told to. The shares of AMD's GPUs are assumed.
NAMED: dict[str, Machine] = {
    "strix-halo": _halo(128, 120),
    "strix-halo-64": _halo(64, 60),
    "strix-halo-default": replace(_halo(128, 62.5), name="Strix Halo, 128 GB of memory, kernel's default for the GPU"),
    "rx-7900-xtx": Machine("Radeon RX 7900 XTX", "rocm", 24 * GIB, 122.8e12, "gfx1100", bandwidth=960e9),
    "r9700": Machine("Radeon AI PRO R9700", "rocm", 32 * GIB, 191e12, "gfx1201", bandwidth=640e9, link=50e9),
    "mi300x": Machine("Instinct MI300X", "rocm", 192 * GIB, 1307e12, "gfx942", bandwidth=5300e9, link=50e9),
    "rtx-4090": Machine("GeForce RTX 4090", "cuda", 24 * GIB, 165e12, share=0.65, bandwidth=1008e9),
    "h100": Machine("H100 80GB", "cuda", 80 * GIB, 989e12, share=0.65, bandwidth=3350e9, link=55e9),
    "h200": Machine("H200", "cuda", int(139.8 * GIB), 989e12, measured=True, share=0.65, bandwidth=4800e9, link=55e9),
}
_BY_WORD = {
    "h200": "h200",
    "h100": "h100",
    "4090": "rtx-4090",
    "7900 xtx": "rx-7900-xtx",
    "r9700": "r9700",
    "mi300x": "mi300x",
}
# Operations a second of one core, by what it multiplies itself; from steps of the demo's model on one core.
_CORE = {"bf16": 40e9, "fp32": 25e9}


def named(word: str) -> Machine:
    """Return a machine by its name in the table, `here`, `cpu`, or a size as `24GiB`. Raises InputError."""
    low = word.strip().lower()
    if low == "here":
        return here()
    if low == "cpu":
        return cpu()
    size = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(g|gb|gib)", low)
    if size:
        unit = 1e9 if size[2] == "gb" else GIB
        return Machine(f"a GPU of {word}", "cuda", int(float(size[1]) * unit))
    if low not in NAMED:
        cure = nearest(low, [*NAMED, "here", "cpu"])
        raise InputError(
            Problem(f"there is no device '{word}'; known: {', '.join(NAMED)}, here, cpu, 24GiB", cure=cure)
        )
    return NAMED[low]


def of_device(device: Device) -> Machine:
    """Return the machine that torch has found."""
    if device.kind == "cpu":
        return cpu()
    system = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if device.unified else 0
    return _of_gpu(device.name, device.kind, device.memory, device.arch, system)


def _of_gpu(name: str, kind: Kind, memory: int, arch: str, system: int) -> Machine:
    like = next((NAMED[key] for word, key in _BY_WORD.items() if word in name.lower()), None)
    if arch == "gfx1151":
        like = NAMED["strix-halo"]
    if like is None:
        return Machine(name, kind, memory, arch=arch, system=system)
    return replace(like, name=name, kind=kind, memory=memory, arch=arch or like.arch, system=system)


def here(root: Path = Path("/")) -> Machine:
    """Return the machine that this is, without asking torch: an AMD GPU, an NVIDIA GPU, else the CPU."""
    return _amd(root) or _nvidia(root) or cpu(root)


def _amd(root: Path) -> Machine | None:
    memory = {"vram": 0, "gtt": 0}
    for name in memory:
        for path in sorted((root / "sys/class/drm").glob(f"card[0-9]*/device/mem_info_{name}_total")):
            memory[name] = max(memory[name], _whole(path))
    if not memory["vram"] or not (root / "dev/kfd").exists():
        return None
    version = 0
    for path in sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")):
        found = dict(line.split(None, 1) for line in _text(path).splitlines() if " " in line)
        version = max(version, int(found.get("gfx_target_version", "0") or 0))
    arch = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else ""
    if arch in UNIFIED:
        return _of_gpu(f"AMD GPU ({arch})", "rocm", max(memory.values()), arch, _memory(root))
    return _of_gpu(f"AMD GPU ({arch})" if arch else "AMD GPU", "rocm", memory["vram"], arch, 0)


def _nvidia(root: Path) -> Machine | None:
    if not (root / "proc/driver/nvidia/gpus").is_dir():
        return None
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    name, _, mib = (told.splitlines() or [""])[0].rpartition(",")
    return _of_gpu(name.strip(), "cuda", int(float(mib)) * 2**20, "", 0) if name and mib.strip().isdigit() else None


def cpu(root: Path = Path("/")) -> Machine:
    """Return this machine's processor and memory."""
    info = _text(root / "proc/cpuinfo")
    half = bool(re.search(r"^(?:flags|Features)\s*:.*\b(?:avx512_bf16|amx_bf16|bf16)\b", info, re.M))
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.M)
    cores = _threads(os.environ)
    name = f"CPU, {cores} thread{'s' * (cores != 1)} ({model[1] if model else 'unknown'})"
    peak = cores * _CORE["bf16" if half else "fp32"]
    return Machine(name, "cpu", _memory(root), peak, measured=True, half=half)


def _threads(environment: Mapping[str, str]) -> int:
    written = environment.get("OMP_NUM_THREADS", "")
    return int(written) if written.isdigit() and int(written) else len(os.sched_getaffinity(0))


def _memory(root: Path) -> int:
    """Return the bytes of memory: of the container's limit where that is less."""
    found = re.search(r"^MemTotal:\s*([0-9]+) kB", _text(root / "proc/meminfo"), re.M)
    total = int(found[1]) * 1024 if found else 0
    limit = _text(root / "sys/fs/cgroup/memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() and total else total


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _whole(path: Path) -> int:
    text = _text(path).strip()
    return int(text) if text.isdigit() else 0
