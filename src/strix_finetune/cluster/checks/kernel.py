"""The kernel's settings that decide how much memory a GPU has and how it reaches an adapter, compared."""

from __future__ import annotations

import re
from collections.abc import Iterator

from strix_finetune.cluster.environment import by_rdma
from strix_finetune.cluster.facts import Found, NodeFacts
from strix_finetune.cluster.findings import Finding

NAME = "kernel"
_PAGES_A_GIB = 262144
# what is said on the kernel's command line of the GPU's driver, its memory, and the IOMMU
_FLAG = re.compile(r"\b((?:amdgpu|ttm)\.[\w]+=\S+|(?:amd_)?iommu=\S+|pci=\S+|pcie_aspm=\S+)")


def check(found: Found) -> Iterator[Finding]:
    amd = [node for node in found.nodes if any(gpu.startswith("gfx") for gpu in node.gpus)]
    if len(amd) > 1:
        yield from _alike(amd)
    if by_rdma(found.cluster, found.nodes):
        for node in found.nodes:
            if node.iommu_groups and "iommu=pt" not in node.command_line:
                says = "the IOMMU translates what the adapter sends"
                cure = "add iommu=pt to the kernel's command line"
                yield Finding(NAME, "warning", (node.name,), says, cure)


def _alike(nodes: list[NodeFacts]) -> Iterator[Finding]:
    head = nodes[0]
    same = True
    for node in nodes[1:]:
        differing = []
        if node.kernel != head.kernel:
            differing.append(f"Linux {node.kernel} (there {head.kernel})")
        if bool(node.iommu_groups) != bool(head.iommu_groups):
            words = ("on", "off") if node.iommu_groups else ("off", "on")
            differing.append(f"IOMMU {words[0]} (there {words[1]})")
        here, there = _flags(node), _flags(head)
        differing += [f"{flag} only here" for flag in sorted(here - there)]
        differing += [f"{flag} only there" for flag in sorted(there - here)]
        if differing:
            same = False
            says = f"its kernel differs from that of {head.name}: {', '.join(differing)}"
            yield Finding(
                NAME, "warning", (node.name,), says, "run `strix-finetune doctor` on both and make them alike"
            )
        if node.ttm_pages != head.ttm_pages:
            same = False
            says = f"the GPU may have {_gib(node)} of memory here and {_gib(head)} on {head.name}"
            cure = "set ttm.pages_limit alike; the smaller one decides what fits"
            yield Finding(NAME, "warning", (node.name,), says, cure, {"ttm_pages": node.ttm_pages})
    if same:
        yield Finding(NAME, "ok", (), f"kernels and their settings are alike (Linux {head.kernel})")


def _flags(node: NodeFacts) -> set[str]:
    return set(_FLAG.findall(node.command_line))


def _gib(node: NodeFacts) -> str:
    return f"{node.ttm_pages / _PAGES_A_GIB:.0f} GiB" if node.ttm_pages else "the default"
