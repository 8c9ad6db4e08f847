"""The IOMMU: a little speed against protection, the NPU and virtual machines; with several cards, stability."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.doctor import distro, gpus
from strix_finetune.doctor.host import Host
from strix_finetune.doctor.values import Check, Finding

_TRADE = "without it no device is kept out of the memory of others (Thunderbolt), and neither the NPU nor VFIO works"


def iommu(host: Host) -> Iterator[Finding]:
    found = gpus.meant(host)
    if not found:
        return
    line = host.text("proc/cmdline")
    if line is None:
        yield Finding("unknown", "the tree does not show the kernel's command line")
        return
    words = line.split()
    system = distro.find(host)
    if "amd_iommu=pt" in words:
        yield Finding(
            "warning",
            "amd_iommu=pt does not exist: the kernel ignores it",
            "say iommu=pt for pass-through",
            distro.kernel_arguments(system, ["iommu=pt"], ["amd_iommu=pt"]),
        )
    if {"amd_iommu=off", "intel_iommu=off", "iommu=off"} & set(words):
        mode = "off"
    elif {"iommu=pt", "iommu.passthrough=1"} & set(words):
        mode = "pass-through"
    elif host.names("sys/class/iommu"):
        mode = "translating"
    else:
        mode = "absent"
    data = {"mode": mode}
    cards = [item for item in found if not gpus.unified(host, item)]
    if len(cards) > 1 and mode == "translating":
        yield Finding(
            "warning",
            f"{len(cards)} cards and an IOMMU that translates: RCCL warns that this may hang",
            "start the kernel with iommu=pt",
            distro.kernel_arguments(system, ["iommu=pt"]),
            data,
        )
    elif not cards and mode in ("translating", "pass-through"):
        state = "on" if mode == "translating" else "in pass-through mode"
        yield Finding(
            "advice",
            f"the IOMMU is {state}: without it an APU was measured to be 5 to 12 % faster (iommu=pt gains "
            f"nothing); but {_TRADE}, and RDMA between machines wants iommu=pt",
            "where you need none of that, start the kernel with amd_iommu=off",
            distro.kernel_arguments(system, ["amd_iommu=off"], [word for word in words if word == "iommu=pt"]),
            data,
        )
    elif mode == "off":
        yield Finding("ok", f"the IOMMU is off: {_TRADE}", data=data)
    else:
        yield Finding("ok", f"the IOMMU is {'in pass-through mode' if mode == 'pass-through' else mode}", data=data)


CHECKS = (
    Check(
        "iommu",
        "amd_iommu=off makes memory of an APU 5 to 12 % faster and costs the NPU, VFIO and protection from devices; "
        "iommu=pt gains nothing there, and is what RCCL asks for with several cards.",
        "https://github.com/kyuz0/amd-strix-halo-toolboxes/issues/66, https://github.com/antirez/ds4/pull/871",
        ("ok", "advice", "warning", "unknown"),
        iommu,
    ),
)
