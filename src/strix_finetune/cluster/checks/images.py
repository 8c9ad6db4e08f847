"""The same image, the same packages and the same kind of GPU on all nodes: else ranks compute different things."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.cluster.facts import Found, NodeFacts
from strix_finetune.cluster.findings import Finding

NAME = "image"


def check(found: Found) -> Iterator[Finding]:
    there = [node for node in found.nodes if node.image_id]
    for node in found.nodes:
        if not node.image_id:
            cure = f"`strix-finetune pull` there, or send it: `docker save {node.image} | ssh … docker load`"
            yield Finding(NAME, "failure", (node.name,), f"the image {node.image} is not on this node", cure)
    if there:
        head = there[0]
        different = [node for node in there[1:] if not _same(head, node)]
        for node in different:
            yield _different(head, node)
        if not different:
            says = f"{head.image} is {_short(head)} on all nodes" if len(there) > 1 else f"{head.image} is there"
            yield Finding(NAME, "ok", (), says, data={"id": head.image_id})
        yield from _packages(there)
        yield from _gpus(there)


def _same(one: NodeFacts, other: NodeFacts) -> bool:
    """By id, or by a digest of a registry: engines that convert an image on the way give it an id of their own."""
    return one.image_id == other.image_id or bool(set(one.image_digests) & set(other.image_digests))


def _different(head: NodeFacts, node: NodeFacts) -> Finding:
    data = {"id": node.image_id, "head_id": head.image_id, "key": node.image_key, "head_key": head.image_key}
    cure = f"make it the same: `strix-finetune push` from {head.name} and `strix-finetune pull` here"
    if head.image_key and head.image_key == node.image_key and dict(head.packages) == dict(node.packages):
        says = f"the image was built here by itself, from the same inputs as that of {head.name}"
        return Finding(NAME, "warning", (node.name,), says, cure, data)
    says = f"the image is {_short(node)} here and {_short(head)} on {head.name}"
    return Finding(NAME, "failure", (node.name,), says, cure, data)


def _short(node: NodeFacts) -> str:
    return node.image_id.removeprefix("sha256:")[:12]


def _packages(nodes: list[NodeFacts]) -> Iterator[Finding]:
    head = nodes[0]
    same = True
    for node in nodes[1:]:
        if not node.python:
            continue  # its agent did not start
        names = sorted({*head.packages, *node.packages})
        pairs = [(name, node.packages.get(name, "missing"), head.packages.get(name, "missing")) for name in names]
        pairs.append(("python", node.python, head.python))
        other = [f"{name} {here} (there {there})" for name, here, there in pairs if here != there]
        if other and head.python:
            same = False
            says = f"packages differ from those of {head.name}: {', '.join(other[:5])}"
            says += f" and {len(other) - 5} more" if len(other) > 5 else ""
            yield Finding("packages", "failure", (node.name,), says, "use the same image on all nodes")
    if same and head.packages and len(nodes) > 1:
        torch = head.packages.get("torch", "none")
        yield Finding("packages", "ok", (), f"all nodes have the same packages (torch {torch})", data={"torch": torch})


def _gpus(nodes: list[NodeFacts]) -> Iterator[Finding]:
    head = nodes[0]
    for node in nodes[1:]:
        if bool(node.gpus) != bool(head.gpus):
            which, other = (head, node) if head.gpus else (node, head)
            says = f"{which.name} trains on its GPU ({which.gpus[0]}) and {other.name} has none that this user may use"
            cure = f"run `strix-finetune doctor` on {other.name}"
            yield Finding("gpus", "failure", (node.name,), says, cure)
        elif sorted(node.gpus) != sorted(head.gpus):
            says = (
                f"its GPUs ({', '.join(node.gpus)}) are other ones than those of {head.name} ({', '.join(head.gpus)})"
            )
            yield Finding("gpus", "warning", (node.name,), says, "the slowest one sets the pace of all")
    for node in nodes:
        if node.gpus and node.image_target.startswith("gfx") and node.image_target not in node.gpus:
            says = f"the image is made for {node.image_target}, and this node has {', '.join(sorted(set(node.gpus)))}"
            yield Finding("gpus", "warning", (node.name,), says, f"build or pull the image for {node.gpus[0]}")
