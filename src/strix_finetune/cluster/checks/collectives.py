"""A real all_reduce over all nodes, with the variables that training gets: the proof of what the others say."""

from __future__ import annotations

import re
from collections.abc import Iterator

from strix_finetune.cluster.facts import Found, Reduction
from strix_finetune.cluster.findings import Finding

_NAMES = {"gloo": "gloo", "nccl": "RCCL"}
_INTERFACE = re.compile(r"Unable to find (?:address|interface) for: (\S+)|Unable to find interface (\S+)")
_REMOTE = re.compile(r"remote=\[?([0-9a-fA-F.:]+?)\]?:(\d+)")


def check(found: Found) -> Iterator[Finding]:
    for backend in dict.fromkeys(item.backend for item in found.reductions):
        items = [item for item in found.reductions if item.backend == backend]
        name = _NAMES.get(backend, backend)
        if all(item.ok for item in items):
            slowest = min(items, key=lambda item: item.gbit)
            says = f"{name} sums over all {len(items)} nodes, {slowest.gbit:.3g} Gbit/s"
            yield Finding("allreduce", "ok", (), says, data={"backend": backend, "gbit": slowest.gbit})
            continue
        failed = [item for item in items if not item.ok]
        # who failed by itself tells more than who waited for it in vain
        first = min(failed, key=lambda item: (item.late, _waited(item.said)))
        says, cure = _why(first, name)
        others = [item.node for item in failed if item.node != first.node]
        if others:
            says += f"; {', '.join(others)} waited for it" if not first.late else f"; nor does {', '.join(others)}"
        yield Finding("allreduce", "failure", (first.node,), says, cure, {"backend": backend, "stage": first.stage})


def _waited(said: str) -> bool:
    return "timed out" in said.lower() or "timeout" in said.lower() or "closed by peer" in said


def _why(item: Reduction, name: str) -> tuple[str, str]:
    """What became of it, and the cure."""
    lost = _INTERFACE.search(item.said)
    remote = _REMOTE.search(item.said)
    if lost:
        which = lost[1] or lost[2]
        return f"{name} finds no address on the interface {which} here", "correct 'interface', or leave it out"
    if remote and remote[1].startswith("127."):
        return f"{name} was sent to {remote[1]}, the loopback of another node", "correct 'address' and 'interface'"
    if item.stage == "import":
        return (
            f"{name} was not tried, since torch did not load here ({_last(item.said)})",
            "run `strix-finetune smoke` there, or give the machine more time",
        )
    if "address already in use" in item.said.lower():
        return (
            f"the port where the nodes meet is taken here ({_last(item.said)})",
            "end that program, or change 'ports'",
        )
    if item.stage in ("imported", "meet"):
        return f"{name} did not get to the head's port ({_last(item.said)})", "see what is said of ports and the head"
    if item.late or _waited(item.said):
        at = f" ({remote[1]}:{remote[2]} did not answer)" if remote else ""
        return (
            f"{name} met at the head, and the nodes do not get through to each other{at}",
            "open all TCP ports between the nodes: gloo and RCCL choose theirs by themselves",
        )
    return f"{name} failed ({_last(item.said)})", "set NCCL_DEBUG=INFO or TORCH_DISTRIBUTED_DEBUG=DETAIL to see more"


def _last(said: str) -> str:
    """The last line that says something: of a traceback the exception."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit)\b", line)]
    words = (telling or lines or ["it ended without a word"])[-1]
    return words[:240].rstrip(".")
