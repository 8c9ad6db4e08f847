"""How much of an APU's memory ROCm may use, from what the kernel says of it: pure, sizes in bytes.

The kernel takes its limit from the TTM module (half of the memory by default), and uses the part that the BIOS cut off
only where that is the larger one (amdgpu: apu_prefer_gtt). AMD's packaged driver brings a TTM of its own, amdttm, and
Ubuntu's OEM kernels may have both.
"""

from __future__ import annotations

from dataclasses import dataclass

from strix_finetune.doctor.gpus import Gpu
from strix_finetune.doctor.host import Host, number

GIB = 1 << 30
PAGE = 4096
# the host needs this for itself while training: Python, the loader, a checkpoint that is being written
_KEPT = 8
# below it, the whole machine stops when training fills what the limit allows
LEAST_LEFT = 4 * GIB


@dataclass(frozen=True, slots=True)
class Memory:
    """`total`: what the system has; `carved`: what the BIOS gave to the GPU for good; `limit`: what ROCm may map.

    `module`: the TTM that the driver uses.
    """

    total: int
    carved: int
    limit: int
    module: str

    @property
    def installed(self) -> int:
        """What was bought: sizes of memory modules are multiples of 8 GiB, and firmware keeps a little."""
        return -(-(self.total + self.carved) // (8 * GIB)) * 8 * GIB

    @property
    def usable(self) -> int:
        return self.limit if self.carved < self.limit else self.carved

    @property
    def advised(self) -> int:
        """Seven eighths of what is installed, as long as the BIOS takes next to nothing of it."""
        return self.installed // _KEPT * (_KEPT - 1) // GIB * GIB


def find(host: Host, gpu: Gpu) -> Memory | None:
    total = next(
        (
            kib * 1024
            for line in (host.text("proc/meminfo") or "").splitlines()
            if line.startswith("MemTotal:") and (kib := number(line.split(":")[1].replace("kB", ""))) is not None
        ),
        0,
    )
    module = "amdttm" if host.exists("sys/module/amdttm") else "ttm"
    pages = host.number(f"sys/module/{module}/parameters/pages_limit")
    limit = gpu.gtt if gpu.gtt is not None else (pages or 0) * PAGE
    if total <= 0 or limit <= 0 or gpu.vram is None or gpu.vram < 0:
        return None
    return Memory(total, gpu.vram, limit, module)


def gib(size: int) -> float:
    return round(size / GIB, 1)


def words(size: int) -> str:
    """ "62.5 GiB", and "120 GiB" where that is exact enough."""
    value = gib(size)
    return f"{value:.0f} GiB" if value == int(value) else f"{value} GiB"
