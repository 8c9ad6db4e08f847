"""`train estimate --nodes N --link LINK`: every way to share a run among machines, with memory, traffic and time.

Each machine has one device. Times are none where nothing is known about the link or about the machine's speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from strix_train.estimate import advice, request, sharing, steps
from strix_train.estimate.links import Link
from strix_train.estimate.machines import Machine
from strix_train.estimate.memory import Backend, Parts, Wish
from strix_train.estimate.shapes import Shape
from strix_train.estimate.sharing import Sharing
from strix_train.estimate.strategy import Choice, enough_rows, for_recipe
from strix_train.estimate.words import duration, size, traffic
from strix_train.recipe.schema import Recipe

WAYS: tuple[Sharing, ...] = ("ddp", *reversed(sharing.FSDP), "zero2", "zero3")
TITLES = {"kept": "fsdp kept", "quiet": "fsdp quiet"}
_PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "workspace")


@dataclass(frozen=True, slots=True)
class Way:
    """One way to share. `needed`: bytes of each device; `sent`: bytes that each machine sends in a step.

    `accumulation`, `batch`: the least schedule.accumulation, or schedule.batch, with which it reaches 0.9 of the ideal;
    None where none does, where it is there already, or where so many rows would not fit.
    """

    sharing: Sharing
    parts: Parts
    needed: int
    fits: bool
    sent: float
    step: steps.Step | None = None
    accumulation: int | None = None
    batch: int | None = None


def ways(wish: Wish, machine: Machine, nodes: int, link: Link | None, *, batch: int | None = None) -> list[Way]:
    """Return all ways to share what one machine trains among `nodes` of them. `batch`: schedule.batch, see strategy."""
    return [_way(wish, machine, how, nodes, link, batch or wish.rows) for how in WAYS]


def _way(wish: Wish, machine: Machine, how: Sharing, nodes: int, link: Link | None, batch: int) -> Way:
    parts = sharing.parts(wish, how, nodes)
    needed = advice.needed(parts, machine)
    sent = sharing.traffic(wish, how, nodes).step(wish.accumulation)
    way = Way(how, parts, needed, needed <= machine.usable, sent)
    step = steps.of(wish, machine, how, nodes, link) if link else None
    if step is None or link is None or step.efficiency >= steps.GOOD:
        return replace(way, step=step)
    more = steps.enough(wish, machine, how, nodes, link)
    larger = None if more else enough_rows(wish, machine, how, nodes, link, batch=batch, room=machine.usable)
    return replace(way, step=step, accumulation=more, batch=larger)


def before(
    recipe: Recipe,
    shape: Shape,
    machine: Machine,
    ranks: int,
    *,
    room: int,
    link: Link | None,
    backend: Backend,
    longest: int | None,
) -> tuple[bool, str]:
    """Return whether a recipe fits `ranks` processes of `room` bytes each, and the sentence for before the run."""
    kind = recipe.strategy.kind
    # who asks for fsdp gets it also where all would fit
    barred = {"ddp": "fsdp is asked for"} if kind == "fsdp" else None
    choice = for_recipe(
        recipe, shape, machine, ranks, backend=backend, longest=longest, memory=room, link=link, barred=barred
    )
    named = {"ddp": "ddp", "fsdp": taken(choice), "deepspeed": f"zero{recipe.strategy.stage}"}
    fallback: Sharing = "fsdp" if kind == "fsdp" else "ddp"
    how = next((way for way in WAYS if way == named.get(kind, taken(choice))), fallback)
    wish = request.wish(recipe, shape, machine, backend=backend, longest=longest)
    needed = advice.needed(sharing.parts(wish, how, ranks), machine)
    step = steps.of(wish, machine, how, ranks, link) if link else None
    pace = f", about {duration(step.seconds)} a step, {step.efficiency:.0%} of the ideal" if step else ""
    text = f"{size(needed)} of {size(room)} for each of {ranks} processes ({TITLES.get(how, how)}){pace}"
    fits = needed <= room
    return fits, text if fits or not choice.cure else f"{text}; {choice.cure}"


def taken(choice: Choice) -> str:
    """Return the way that a choice takes."""
    return "quiet" if choice.keep_gradients else "kept" if choice.keep_weights else choice.strategy or "nothing fits"


def lines(found: list[Way], choice: Choice, nodes: int, link: Link | None) -> Iterator[str]:
    """Yield the table as text."""
    told = f" over {link.name} ({link.gbit:g} Gbit/s, {link.round_trip:g} us: {link.source})" if link else ""
    yield f"{nodes} machines with one device each{told}"
    here = taken(choice)
    titles = (TITLES.get(way.sharing, way.sharing) + (" *" if way.sharing == here else "") for way in found)
    yield f"{'':<14}" + "".join(f"{title:>14}" for title in titles)
    for part in _PARTS:
        yield f"{part:<14}" + "".join(f"{size(getattr(way.parts, part)):>14}" for way in found)
    yield f"{'needed':<14}" + "".join(f"{size(way.needed) + ('' if way.fits else '!'):>14}" for way in found)
    yield f"{'sent a step':<14}" + "".join(f"{traffic(way.sent):>14}" for way in found)
    if any(way.step for way in found):
        yield f"{'step':<14}" + "".join(f"{duration(way.step.seconds) if way.step else '':>14}" for way in found)
        yield f"{'of the ideal':<14}" + "".join(
            f"{f'{way.step.efficiency:.0%}' if way.step else '':>14}" for way in found
        )
        yield f"{f'{steps.GOOD:.0%} with':<14}" + "".join(f"{_enough(way):>14}" for way in found)
    yield "               (memory of each machine; * taken by strategy: auto, ! more than there is;"
    yield "               kept: gathered weights until the last pass of a step; quiet: and own sums of gradients)"
    yield ""
    yield f"strategy   {choice.reason}"
    if choice.cure:
        yield f"           {choice.cure}"


def _enough(way: Way) -> str:
    if way.accumulation:
        return f"{way.accumulation} passes"
    if way.batch:
        return f"batch {way.batch}"
    return "" if way.step and way.step.efficiency >= steps.GOOD else "no setting"


def facts(found: list[Way], choice: Choice, nodes: int, link: Link | None) -> dict[str, Any]:
    """Return the same as a document; sizes in bytes."""

    def one(way: Way) -> dict[str, Any]:
        step = way.step
        return {
            **asdict(way.parts),
            "needed": way.needed,
            "fits": way.fits,
            "sent": round(way.sent),
            "seconds": round(step.seconds, 4) if step else None,
            "sending": round(step.sending, 4) if step else None,
            "efficiency": round(step.efficiency, 4) if step else None,
            "enough_accumulation": way.accumulation,
            "enough_batch": way.batch,
        }

    return {
        "count": nodes,
        "link": asdict(link) if link else None,
        "strategy": choice.strategy,
        "keep_weights": choice.keep_weights,
        "keep_gradients": choice.keep_gradients,
        "reason": choice.reason,
        "cure": choice.cure,
        "ways": {way.sharing: one(way) for way in found},
    }
