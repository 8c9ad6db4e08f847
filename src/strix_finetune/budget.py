"""How large a layer may be: the size that it adds to its parent, held against the budget in its definition.

Sizes are unpacked, summed over the steps of an image's history. The size that an engine names for a whole image will
not do: with containerd's store Docker counts the compressed layers as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from strix_finetune import names
from strix_finetune.engine.base import Engine
from strix_finetune.errors import EngineError, Place, Problem, TooLarge
from strix_finetune.model import Channel, Keyed, Node, Stack
from strix_finetune.sizes import mb

MB = 10**6


@dataclass(frozen=True, slots=True)
class Budget:
    """`size` in bytes, and the line that says it."""

    size: int
    place: Place


def of(node: Node, channel: Channel) -> Budget | None:
    """What the user's override says, else the channel, else the layer; None where none of them does."""
    edit, tuning = node.layer.edit, channel.spec.layers.get(node.name)
    if edit and edit.spec.budget_mb:
        line = edit.source.positions.line(("layers", node.name, "budget_mb"))
        return Budget(edit.spec.budget_mb * MB, Place(edit.source.path, line))
    if tuning and tuning.budget_mb:
        line = channel.source.positions.line(("layers", node.name, "budget_mb"))
        return Budget(tuning.budget_mb * MB, Place(channel.source.path, line))
    if node.layer.spec.budget_mb:
        source = node.layer.source
        return Budget(node.layer.spec.budget_mb * MB, Place(source.path, source.positions.line(("budget_mb",))))
    return None


def unpacked(engine: Engine, image: str) -> int:
    """Bytes of all layers of an image."""
    return sum(layer.size for layer in engine.history(image))


def own_size(engine: Engine, image: str, parent: str) -> int:
    """Bytes that `image` adds to `parent`; all of its bytes where that is empty."""
    return unpacked(engine, image) - (unpacked(engine, parent) if parent else 0)


def check(engine: Engine, stack: Stack, layer: Keyed, image: str) -> None:
    """Raise TooLarge when a fresh image adds more than its layer may; the sentence names the largest folders."""
    node = layer.layer.node
    budget = of(node, stack.channel)
    if budget is None:
        return
    # the label says which parent this image was built on, and its name is only ever of that one
    parent = names.layer_ref(node.parent, stack.target.id, layer.parts[f"parent {node.parent}"]) if node.parent else ""
    size = own_size(engine, image, parent)
    if size > budget.size:
        raise TooLarge(
            Problem(
                f"'{layer.name}' adds {mb(size)} and may add {mb(budget.size)}{_where(engine, image, parent)}",
                budget.place,
                "leave out what nobody needs, or raise budget_mb; no tag was moved",
            )
        )


def _where(engine: Engine, image: str, parent: str) -> str:
    from strix_finetune.engine.contents import heaviest, own_folders

    try:
        found = heaviest(own_folders(engine, image, parent))
    except EngineError:
        # the size alone says enough
        return ""
    return f", most of it in {', '.join(f'{path} ({mb(size)})' for path, size in found)}" if found else ""
