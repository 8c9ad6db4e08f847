"""What a scene is: a machine, and what doctor has to find on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from strix_finetune.doctor.registry import CHECKS
from strix_finetune.doctor.values import Report
from tests.unit.doctor.hosts import DEBIAN, FEDORA, MI300X, NOBLE, RAPHAEL, RX7900, FakeEdges, Tree, halo

FEDORA_KERNEL = "6.18.9-200.fc43.x86_64"
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


@dataclass(frozen=True)
class Scene:
    """`expected`: "check verdict" of each finding, in order; `numbers`: of a check's first finding; `words`: said
    somewhere; `edges`: with them it is the machine itself."""

    build: Callable[[Tree], object]
    expected: tuple[str, ...]
    numbers: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    edges: FakeEdges | None = None
    wanted: str = ""
    env: Mapping[str, str] | None = None

    def report(self, root: Path) -> Report:
        tree = Tree(root)
        self.build(tree)
        return tree.report(self.edges, wanted=self.wanted, env=self.env)


def expects(**verdicts: str) -> tuple[str, ...]:
    """check="verdict" or "verdict verdict", in the order of the checks; "" for none."""
    found = {name.replace("_", "-"): text.split() for name, text in verdicts.items()}
    assert set(found) <= {check.name for check in CHECKS}
    return tuple(f"{check.name} {verdict}" for check in CHECKS for verdict in found.get(check.name, []))


def docker(**changed: str) -> tuple[str, ...]:
    """What is found on `noble_halo`, but for what is changed."""
    usual = dict.fromkeys(("gpu", "devices", "kernel", "firmware", "memory", "iommu", "variables", "cgroups"), "ok")
    usual |= {"target": "advice advice", "memory_settings": "ok", "engine": "unknown", "disk": "unknown"}
    return expects(**(usual | changed))


def podman(**changed: str) -> tuple[str, ...]:
    """What is found on `fedora_halo`."""
    return docker(**({"subids": "ok", "namespaces": "ok", "runtime": "ok"} | changed))


def itself(**changed: str) -> tuple[str, ...]:
    """The same where the machine itself answers."""
    return podman(**({"engine": "ok", "disk": "ok", "temporary": "ok", "network": "unknown"} | changed))


def fedora_halo(tree: Tree, **options: float) -> Tree:
    """A Strix Halo of 128 GB on Fedora 43 with rootless Podman, as it should be."""
    tree.system(FEDORA, FEDORA_KERNEL).user().gpus(halo(**options)).firmware(0x80)
    return tree.rootless().put("proc/self/mountinfo", "1 0 0:1 / / rw - btrfs /dev/nvme0n1p3 rw\n")


def noble_halo(tree: Tree, kernel: str = "6.17.0-19-generic", **options: float) -> Tree:
    """The same on Ubuntu 24.04 with Docker."""
    tree.system(NOBLE, kernel, cmdline="ro quiet amd_iommu=off ttm.pages_limit=29360128")
    return tree.user(groups=(39, 105, 998)).gpus(halo(**options)).firmware(0x92).docker()


def carved_halo(tree: Tree, system: float, vram: float, gtt: float, cmdline: str = "ro") -> Tree:
    """One whose BIOS keeps `vram` GiB; the system has `system`, and ROCm may map `gtt` of that."""
    tree.system(FEDORA, FEDORA_KERNEL, memory=system, cmdline=cmdline).user()
    return tree.gpus(halo(vram=vram, gtt=gtt)).firmware(0x80).rootless()


def desktop(tree: Tree) -> Tree:
    return tree.system(DEBIAN, "6.12.48+deb13-amd64", memory=62).user().gpus(RAPHAEL, RX7900).docker()


def server(tree: Tree) -> Tree:
    tree.system(NOBLE, "6.8.0-60-generic", memory=1500).user().gpus(*[MI300X] * 8).iommu().docker()
    tree.put("var/lib/dkms/amdgpu/6.14.5/source/dkms.conf").put("sys/firmware/efi/fw_vendor")
    return tree.put(SECURE_BOOT, b"\6\0\0\0\1")


def wsl(tree: Tree) -> Tree:
    tree.system(NOBLE, "6.6.87.2-microsoft-standard-WSL2", memory=60).user(groups=(998,), members=False)
    return tree.put("dev/dxg").put("usr/lib/wsl/lib/libdxcore.so").put("opt/rocm/lib/librocdxg.so.1").docker()


def bare(tree: Tree, *programs: str) -> Tree:
    """A machine without an AMD GPU."""
    return tree.system(DEBIAN, "6.12.48+deb13-amd64", memory=31).user().programs(*programs)


def selinux(tree: Tree, everything: str, dri: str) -> Tree:
    folder = "sys/fs/selinux"
    tree.put(f"{folder}/enforce", "1").put(f"{folder}/booleans/container_use_devices", everything)
    return tree.put(f"{folder}/booleans/container_use_dri_devices", dri)
