"""Fake hosts: a folder of the files that a machine would show, written by a few words each."""

from __future__ import annotations

import struct
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strix_finetune.doctor.edges import EngineState, Reached, Space, ToolboxImage
from strix_finetune.doctor.host import OWNERS, Host
from strix_finetune.doctor.registry import examine
from strix_finetune.doctor.values import Report
from strix_finetune.engine.base import EngineInfo, EngineKind
from strix_finetune.errors import StrixError
from strix_finetune.paths import find

GIB = 1 << 30
TARGETS: Mapping[str, Mapping[str, object]] = tomllib.loads((find().images / "targets.toml").read_text("utf-8"))[
    "target"
]
FEDORA = 'ID=fedora\nPRETTY_NAME="Fedora Linux 43"\nVERSION_ID=43\n'
NOBLE = 'ID=ubuntu\nID_LIKE=debian\nPRETTY_NAME="Ubuntu 24.04.4 LTS"\nUBUNTU_CODENAME=noble\nVERSION_ID="24.04"\n'
RESOLUTE = NOBLE.replace("noble", "resolute").replace("24.04.4", "26.04").replace("24.04", "26.04")
DEBIAN = 'ID=debian\nPRETTY_NAME="Debian GNU/Linux 13"\nVERSION_CODENAME=trixie\n'
_TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"


@dataclass(frozen=True)
class Card:
    """A GPU: its target, KFD's number for that, compute units, and memory in bytes."""

    gfx: str
    version: int
    units: int
    vram: int
    gtt: int
    ids: tuple[int, int] = (0x1002, 0x1586)


def halo(vram: float = 0.5, gtt: float = 112) -> Card:
    return Card("gfx1151", 110501, 40, int(vram * GIB), int(gtt * GIB))


RX7900 = Card("gfx1100", 110000, 96, 24 * GIB, 32 * GIB, (0x1002, 0x744C))
RAPHAEL = Card("gfx1036", 100306, 2, GIB // 2, 32 * GIB, (0x1002, 0x164E))
RX7700S = Card("gfx1102", 110002, 32, 8 * GIB, 16 * GIB, (0x1002, 0x7480))
PHOENIX = Card("gfx1103", 110003, 12, 4 * GIB, 14 * GIB, (0x1002, 0x15BF))
VAN_GOGH = Card("gfx1033", 100303, 8, -1, -1, (0x1002, 0x163F))
MI300X = Card("gfx942", 90402, 304, 192 * GIB, 1000 * GIB, (0x1002, 0x74A1))


@dataclass
class Tree:
    """A root folder in the making."""

    root: Path
    owners: list[str] = field(default_factory=list)

    def put(self, path: str, content: str | bytes = "") -> Tree:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())
        return self

    def drop(self, *paths: str) -> Tree:
        for path in paths:
            (self.root / path).unlink()
        return self

    def gone(self, path: str) -> Tree:
        """Away with a file, and with what the list of owners says of it."""
        self.owners = [line for line in self.owners if not line.endswith(f"/{path}")]
        return self.drop(path).put(OWNERS, "\n".join(self.owners) + "\n")

    def rename(self, old: str, new: str) -> Tree:
        (self.root / old).rename(self.root / new)
        return self

    def own(self, path: str, mode: int, gid: int) -> Tree:
        self.owners.append(f"{mode:o} 0 {gid} /{path}")
        return self.put(path).put(OWNERS, "\n".join(self.owners) + "\n")

    def system(self, release: str, kernel: str, *, cmdline: str = "ro quiet", memory: float = 125.1) -> Tree:
        self.put("etc/os-release", release).put("proc/sys/kernel/osrelease", f"{kernel}\n")
        self.put("proc/cmdline", f"BOOT_IMAGE=/vmlinuz {cmdline}\n")
        self.put("proc/meminfo", f"MemTotal:       {int(memory * GIB / 1024)} kB\nMemFree: 1 kB\n")
        (self.root / "sys/class/drm").mkdir(parents=True, exist_ok=True)
        return self.put("usr/bin/env")

    def user(self, *, groups: Sequence[int] = (39, 105), members: bool = True, uid: int = 1000, env: str = "") -> Tree:
        """kim, with the groups that the session has; `members`: whether /etc/group lists kim as well."""
        self.put(
            "proc/self/status",
            f"Name:\tpython\nUid:\t{uid}\t{uid}\nGid:\t{uid}\t{uid}\nGroups:\t{' '.join(map(str, groups))}\n",
        )
        self.put("proc/self/environ", f"HOME=/home/kim\0USER=kim\0{env}")
        self.put("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nkim:x:1000:1000:Kim:/home/kim:/bin/bash\n")
        kim = "kim" if members else ""
        return self.put("etc/group", f"root:x:0:\nvideo:x:39:{kim}\nrender:x:105:{kim}\ndocker:x:998:\nkim:x:1000:\n")

    def gpus(self, *cards: Card, devices: bool = True, mode: int = 0o660, gid: int = 105) -> Tree:
        self.put(f"{_TOPOLOGY}/0/properties", "cpu_cores_count 16\nsimd_count 0\ngfx_target_version 0\n")
        for number, card in enumerate(cards):
            minor = 128 + number
            lines = {
                "simd_count": card.units * 2,
                "simd_per_cu": 2,
                "gfx_target_version": card.version,
                "drm_render_minor": minor,
            }
            self.put(f"{_TOPOLOGY}/{number + 1}/properties", "".join(f"{k} {v}\n" for k, v in lines.items()))
            device = f"sys/class/drm/renderD{minor}/device"
            self.put(f"{device}/mem_info_vram_total", f"{card.vram}\n").put(
                f"{device}/mem_info_gtt_total", f"{card.gtt}\n"
            )
            self.bus(f"0000:{number + 1:02x}:00.0", card.ids, "amdgpu")
            if devices:
                self.own(f"dev/dri/renderD{minor}", mode, gid)
        if devices:
            self.own("dev/kfd", mode, gid)
        return self.put("sys/module/amdgpu/refcnt", "1").put(
            "sys/module/ttm/parameters/pages_limit", f"{cards[0].gtt // 4096}\n"
        )

    def bus(self, address: str, ids: tuple[int, int], driver: str) -> Tree:
        folder = f"sys/bus/pci/devices/{address}"
        self.put(f"{folder}/vendor", f"0x{ids[0]:04x}\n").put(f"{folder}/device", f"0x{ids[1]:04x}\n")
        return self.put(f"{folder}/class", "0x030000\n").put(f"{folder}/uevent", f"DRIVER={driver}\n" if driver else "")

    def firmware(self, version: int, place: str = "lib/firmware/amdgpu/gc_11_5_1_mes_2.bin") -> Tree:
        return self.put(place, mes(version))

    def iommu(self) -> Tree:
        return self.put("sys/class/iommu/ivhd0/amd-iommu/features", "1")

    def programs(self, *names: str) -> Tree:
        for name in names:
            self.put(f"usr/bin/{name}")
        return self

    def rootless(self, *programs: str) -> Tree:
        """What a user's Podman needs, in order."""
        self.programs("podman", "crun", "newuidmap", *programs).put("sys/fs/cgroup/cgroup.controllers", "cpu memory")
        self.put("etc/subuid", "kim:100000:65536\n").put("etc/subgid", "kim:100000:65536\n")
        return self.put("proc/sys/user/max_user_namespaces", "255000\n")

    def docker(self) -> Tree:
        return self.programs("docker").put("sys/fs/cgroup/cgroup.controllers", "cpu memory")

    def dpkg(self, **versions: str) -> Tree:
        paragraphs = [
            f"Package: {name.replace('_', '-')}\nStatus: install ok installed\nVersion: {version}\n"
            for name, version in versions.items()
        ]
        return self.put("var/lib/dpkg/status", "\n".join(paragraphs))

    def report(
        self, edges: FakeEdges | None = None, *, wanted: str = "", env: Mapping[str, str] | None = None
    ) -> Report:
        return examine(Host(self.root, edges=edges, targets=TARGETS, wanted=wanted, env=env))


def mes(version: int) -> bytes:
    """A firmware file as far as its version: 256 bytes of header, then words, the 25th of which is it."""
    return b"\0" * 256 + struct.pack("<24I", *range(24)) + struct.pack("<I", 0x81012000 | version) + b"\0" * 64


@dataclass
class FakeEdges:
    """A machine's answers. `refused`: device → reason; `spaces`: path → space, else plenty."""

    state: EngineState
    refused: Mapping[str, str] = field(default_factory=dict)
    spaces: Mapping[str, Space | None] = field(default_factory=dict)
    answers: tuple[Reached, ...] | StrixError | None = None
    size: int = 10 * GIB
    toolbox: ToolboxImage | None = None

    def engine(self) -> EngineState:
        return self.state

    def open(self, path: str) -> str:
        return self.refused.get(path, "")

    def space(self, path: str) -> Space | None:
        return self.spaces.get(path, Space(500 * GIB, 900 * GIB, 10**7, 10**8))

    def budget(self) -> int:
        return self.size

    def toolbox_image(self) -> ToolboxImage | None:
        return self.toolbox

    def reach(self) -> tuple[Reached, ...] | None:
        if isinstance(self.answers, StrixError):
            raise self.answers
        return self.answers


def running(
    kind: EngineKind, *, rootless: bool = False, storage: str = "overlay", root: str = "", system: str = ""
) -> EngineState:
    info = EngineInfo(kind, "5.6.0" if kind == "podman" else "28.1.0", "1.41", "unix:///run/x.sock", rootless)
    return EngineState(info, data_root=root or f"/var/lib/{kind}", storage=storage, system=system)


def verdicts(report: Report) -> list[str]:
    return [f"{result.check} {result.finding.verdict}" for result in report.results]


def said(report: Report) -> str:
    """Everything that the findings say, a line each: the sentence, the fix, the commands."""
    lines = [(result.finding.says, result.finding.fix, *result.finding.commands) for result in report.results]
    return "\n".join(" | ".join(line) for line in lines)
