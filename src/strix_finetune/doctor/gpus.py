"""The AMD GPUs of a host: as the compute driver lists them, and as the PCI bus does where that driver has none."""

from __future__ import annotations

from dataclasses import dataclass

from strix_finetune.doctor.host import Host, number
from strix_finetune.hostgpu import TOPOLOGY, gfx_name

_AMD = 0x1002
# PCI class of display controllers, and of processing accelerators, which Instinct cards are
_DISPLAY, _ACCELERATOR = 0x03, 0x12


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that ROCm can see. `render`: its device file's name; sizes are bytes, None where the driver says none.

    `units`: compute units, by which a small one is told from a large one.
    """

    gfx: str
    render: str
    units: int
    vram: int | None
    gtt: int | None

    @property
    def device(self) -> str:
        return f"/dev/dri/{self.render}"


@dataclass(frozen=True, slots=True)
class PciGpu:
    """A display controller of AMD on the bus: its address, ids as in "1002:1586", and the driver that has it."""

    address: str
    ids: str
    driver: str


def find(host: Host) -> tuple[Gpu, ...]:
    """The GPUs in the compute driver's order, which is ROCm's."""
    found = []
    for path in host.glob(f"{TOPOLOGY}/*/properties"):
        fields = {}
        for line in (host.text(path) or "").splitlines():
            key, _, value = line.partition(" ")
            fields[key] = number(value)
        version = fields.get("gfx_target_version") or 0
        if version <= 0:
            continue
        render = f"renderD{fields.get('drm_render_minor') or 0}"
        device = f"sys/class/drm/{render}/device"
        per_unit = max(1, fields.get("simd_per_cu") or 1)
        found.append(
            Gpu(
                gfx_name(version),
                render,
                (fields.get("simd_count") or 0) // per_unit,
                host.number(f"{device}/mem_info_vram_total"),
                host.number(f"{device}/mem_info_gtt_total"),
            )
        )
    return tuple(found)


def on_bus(host: Host) -> tuple[PciGpu, ...]:
    found = []
    for path in host.glob("sys/bus/pci/devices/*/vendor"):
        folder = path.removesuffix("/vendor")
        kind = number(host.line(f"{folder}/class"), 0) or 0
        if number(host.line(path), 0) != _AMD or kind >> 16 not in (_DISPLAY, _ACCELERATOR):
            continue
        device = number(host.line(f"{folder}/device"), 0) or 0
        events = dict(line.split("=", 1) for line in (host.text(f"{folder}/uevent") or "").splitlines() if "=" in line)
        found.append(PciGpu(folder.rsplit("/", 1)[-1], f"{_AMD:04x}:{device:04x}", events.get("DRIVER", "")))
    return tuple(found)


def meant(host: Host) -> tuple[Gpu, ...]:
    """The GPUs that the work is for: those of the wanted target, else those of the kind of the largest one."""
    found = find(host)
    kind = host.wanted if any(item.gfx == host.wanted for item in found) else ""
    if found and not kind:
        kind = max(found, key=lambda item: item.units).gfx
    return tuple(item for item in found if item.gfx == kind)


def unified(host: Host, gpu: Gpu) -> bool:
    """Whether a GPU has no memory of its own but a part of the host's."""
    return host.targets.get(gpu.gfx, {}).get("memory") == "unified"


def products(host: Host, gfx: str) -> str:
    """What people call a target; empty where the table does not say it."""
    found = host.targets.get(gfx, {}).get("products")
    return ", ".join(map(str, found)) if isinstance(found, list) else ""
