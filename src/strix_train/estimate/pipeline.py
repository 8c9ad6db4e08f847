"""A pipeline of machines, each of which has some of the layers: time of a step, bytes sent, memory of each.

An experiment that `train` does not offer (docs/clusters.md). A step is cut into microbatches, which go through all
stages forward and then backward; only activations and their gradients are sent, from one stage to the next. Stages
wait while the first microbatch comes and the last one goes: (p-1)/(m+p-1) of the time, with p equal stages and m
microbatches. Nothing of the sending is hidden: a stage of torch's schedules asks for a microbatch when it has done the
one before, which `python -m bench pipeline` measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from strix_train.estimate import advice, memory, speed, steps
from strix_train.estimate.links import Link
from strix_train.estimate.machines import Machine
from strix_train.estimate.memory import Wish
from strix_train.estimate.shapes import Block


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`cut`: layers of each stage. `sent`: bytes that a machine between two others sends in a step.

    `needed`: bytes of the fullest machine. `step`: none where nothing is known about the machines' speed.
    """

    cut: tuple[int, ...]
    sent: float
    needed: int
    step: steps.Step | None


def seconds(stages: Sequence[float], microbatches: int, wire: float) -> float:
    """Return the seconds of a step. `stages`: each one's for a microbatch, forward and backward; `wire`: at a border.

    The slowest stage sets the pace. What is sent is waited for, in both directions.
    """
    slots = microbatches + len(stages) - 1
    return sum(stages) + (microbatches - 1) * max(stages) + 2 * wire * slots


def bubble(stages: int, microbatches: int) -> float:
    """Return the share of the time that equal stages wait."""
    return (stages - 1) / (microbatches + stages - 1)


def border(wish: Wish) -> float:
    """Return the bytes of a microbatch at a border, in one direction."""
    return float(wish.tokens * wish.shape.hidden * wish.width)


def sent(wish: Wish, microbatches: int, neighbours: int) -> float:
    """Return the bytes that a stage sends in a step: activations to the next one, gradients to the one before."""
    return neighbours * microbatches * border(wish)


def of(wish: Wish, machine: Machine, stages: int, link: Link, *, microbatches: int | None = None) -> Pipeline:
    """Return the pipeline of so many machines. Raises ValueError where the layers cannot be cut.

    `wish`: what one machine would train, its rows being those of a microbatch. Without `microbatches` the step has the
    rows that so many machines have under any other way: those of `accumulation` passes on each.
    """
    wish = replace(wish, backend="hf", offload=False, lean=False)
    count = microbatches or stages * wish.accumulation
    layers = cut(wish, machine, stages)
    parts = _parts(wish, layers)
    needed = max(
        _needed(part, machine, min(count, stages - at)) for at, part in enumerate(parts)
    )  # of 1F1B: a stage has begun as many microbatches as there are stages from it on
    each = [_pass(part, machine) for part in parts]
    whole = speed.of(replace(wish, accumulation=1), machine)
    step = None
    if whole:
        wire = steps.wire(border(wish), 1, 2, link)
        ideal = whole.seconds * count / stages
        step = steps.Step(ideal, 2 * count * wire, seconds(each, count, wire))
    return Pipeline(layers, sent(wish, count, min(2, stages - 1)), needed, step)


def cut(wish: Wish, machine: Machine, stages: int) -> tuple[int, ...]:
    """Return layers of each stage, so that the slowest one, which may have the output layer, is as quick as can be.

    Where nothing is known about the machine's speed, they are as equal as can be. Raises ValueError.
    """
    layers = wish.shape.layers
    if not 1 <= stages <= layers or len(wish.shape.blocks) != 1:
        raise ValueError(f"{layers} layers of {len(wish.shape.blocks)} kinds cannot be cut for {stages} machines")
    found = [1] * stages
    for _ in range(layers - stages):
        times = [_pass(part, machine) for part in _parts(wish, [each + 1 for each in found])]
        where = min(range(stages), key=lambda at: (times[at], found[at]))
        found[where] += 1
    return tuple(found)


def _parts(wish: Wish, layers: Sequence[int]) -> list[Wish]:
    """Return what each stage trains: a model of fewer layers; the first has the embedding, the last the output layer.

    `scores`: without logits. A shape that is `tied` has no output layer of its own.
    """
    shape, last = wish.shape, len(layers) - 1

    def part(at: int, count: int) -> Wish:
        blocks: tuple[Block, ...] = (replace(shape.blocks[0], count=count),)
        lookup = shape.lookup if at == 0 else 0
        mine = replace(shape, blocks=blocks, lookup=lookup, tied=at < last or (last == 0 and shape.tied))
        return replace(wish, shape=mine, scores=wish.scores or at < last, accumulation=1)

    return [part(at, count) for at, count in enumerate(layers)]


def _pass(part: Wish, machine: Machine) -> float:
    """Return the seconds of a microbatch in a stage, or how many layers it has where no speed is known."""
    found = speed.of(part, machine)
    return found.seconds if found else float(part.shape.layers)


def _needed(part: Wish, machine: Machine, begun: int) -> int:
    """Return the bytes of a stage that has begun so many microbatches."""
    # gradients of those before are there from the beginning
    found = memory.parts(replace(part, accumulation=2))
    return advice.needed(replace(found, activations=int(found.activations + (begun - 1) * memory.kept(part))), machine)
