"""Free memory and disk on each node: what a run is killed for, hours after its start."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.cluster.facts import Found, NodeFacts
from strix_finetune.cluster.findings import Datum, Finding

_GB = 10**9
# importing torch and its friends takes a GiB or two; a checkpoint of an adapter some hundred MB
_MEMORY_FAILS, _MEMORY_WARNS = 1 * _GB, 4 * _GB
_DISK_FAILS, _DISK_WARNS = 1 * _GB, 10 * _GB


def check(found: Found) -> Iterator[Finding]:
    for node in found.nodes:
        if node.memory_bytes:
            yield _node(node, found.cluster.workdir)
    told = [node for node in found.nodes if node.memory_bytes]
    if len(told) > 1:
        least, most = min(told, key=lambda node: node.memory_bytes), max(told, key=lambda node: node.memory_bytes)
        if least.memory_bytes < 0.75 * most.memory_bytes:
            says = f"it has {_size(least.memory_bytes)} of memory, and {most.name} {_size(most.memory_bytes)}"
            yield Finding("room", "warning", (least.name,), says, "the smallest node decides what fits")


def _node(node: NodeFacts, workdir: str) -> Finding:
    free, disk = node.memory_free_bytes, node.disk_free_bytes
    data: dict[str, Datum] = {
        "memory_bytes": node.memory_bytes,
        "memory_free_bytes": free,
        "disk_free_bytes": disk,
    }
    where = (node.name,)
    if free < _MEMORY_WARNS:
        says = f"only {_size(free)} of {_size(node.memory_bytes)} memory are free"
        level = "failure" if free < _MEMORY_FAILS else "warning"
        return Finding("room", level, where, says, "end what uses it", data)  # type: ignore[arg-type]
    if disk is not None and disk < _DISK_WARNS:
        says = f"only {_size(disk)} are free where runs are written ({workdir})"
        level = "failure" if disk < _DISK_FAILS else "warning"
        return Finding("room", level, where, says, "free some space, or change 'workdir'", data)  # type: ignore[arg-type]
    says = f"{_size(free)} of memory are free" + (f", {_size(disk)} of disk" if disk is not None else "")
    return Finding("room", "ok", where, says, data=data)


def _size(count: int) -> str:
    return f"{count / _GB:.1f} GB" if count < 100 * _GB else f"{count / _GB:.0f} GB"
