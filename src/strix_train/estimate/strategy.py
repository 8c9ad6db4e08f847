"""`strategy: auto`: how several ranks share the work, by what fits and what is sent. Pure; nothing imports torch.

`ddp` sends least: the gradients once a step, with an adapter only those of the adapter. Where a rank cannot hold all,
`fsdp` shares weights, gradients and optimizer, and sends the weights twice in every pass; where there is room for all
weights as they compute, but not for the optimizer as well, it keeps them and sends them once a step. DeepSpeed is never
chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from strix_train.estimate import advice, request, sharing, steps
from strix_train.estimate.links import Link
from strix_train.estimate.machines import Machine
from strix_train.estimate.memory import Backend, Parts, Wish
from strix_train.estimate.shapes import Shape
from strix_train.estimate.sharing import Sharing
from strix_train.estimate.words import duration, size, traffic
from strix_train.recipe.schema import Recipe
from strix_train.refusals import IN_PIECES

Strategy = Literal["none", "ddp", "fsdp"]
_AMPLE = 0.95
_MOST = 64  # ranks, or rows of a pass, that a cure speaks of


@dataclass(frozen=True, slots=True)
class Choice:
    """`strategy`: what to do, None where nothing makes it fit. `reason`: one sentence, without a full stop.

    `parts`: memory of each rank at its peak under it (the least that was found where nothing fits); `needed`: bytes of
    a device, what the allocator cannot fill included. `cure`: what to change where it does not fit, or what would make
    a step faster; may be empty. `keep_weights`: fsdp has room to keep gathered weights until the last pass of a step
    (FSDP2: set_reshard_after_forward, set_reshard_after_backward); `keep_gradients`: and to average gradients only then
    (set_requires_gradient_sync).
    """

    strategy: Strategy | None
    reason: str
    parts: Parts
    needed: int
    cure: str = ""
    keep_weights: bool = False
    keep_gradients: bool = False


@dataclass(frozen=True, slots=True)
class _Case:
    """What is asked, with the bytes of one rank's memory."""

    wish: Wish
    machine: Machine
    ranks: int
    room: int
    link: Link | None
    barred: Mapping[str, str]
    batch: int
    least: int

    def needed(self, how: Sharing, wish: Wish | None = None, ranks: int | None = None) -> int:
        """Return the bytes that each rank needs."""
        return advice.needed(sharing.parts(wish or self.wish, how, ranks or self.ranks), self.machine)

    def fits(self, how: Sharing, wish: Wish | None = None, ranks: int | None = None) -> bool:
        """Whether each rank has them."""
        return self.needed(how, wish, ranks) <= self.room

    def widest(self) -> Sharing:
        """Return the kind of fsdp that sends least, of those that leave some room."""
        if "kept" in self.barred:
            return "fsdp"
        if self.wish.accumulation > 1 and self.needed("quiet") <= _AMPLE * self.room:
            return "quiet"
        return "kept" if self.needed("kept") <= _AMPLE * self.room else "fsdp"

    def choice(self, strategy: Strategy | None, how: Sharing, reason: str, cure: str = "") -> Choice:
        """Return a choice whose memory is that of `how`."""
        parts = sharing.parts(self.wish, how, self.ranks)
        return Choice(strategy, reason, parts, self.needed(how), cure, how in ("kept", "quiet"), how == "quiet")


def choose(
    wish: Wish,
    machine: Machine,
    ranks: int,
    *,
    memory: int | None = None,
    link: Link | None = None,
    barred: Mapping[str, str] | None = None,
    batch: int | None = None,
    least: int = 1,
) -> Choice:
    """Return how `ranks` processes, each on a device of its own, train `wish` together.

    `wish`: what one rank trains: request.wish(recipe, shape, machine, backend=…), whose rows are those of one device.
    `memory`: bytes that one rank may use, where that is not machine.usable (several ranks on one device or CPU).
    `link`: between machines, None where it is not known (links.measured(os.environ), or links.named). `barred`:
    strategies that cannot be taken here, each with why, as {"fsdp": "Unsloth's own loop does not share weights"}; with
    "kept", only that fsdp keeps what it gathered.
    `batch`: schedule.batch, where a row of it is more than one row of a pass; `least`: the least that it may be.
    """
    room = machine.usable if memory is None else memory
    case = _Case(wish, machine, ranks, room, link, barred or {}, batch or wish.rows, least)
    if ranks < 2:
        fit = case.fits("none")
        reason = f"none: one process, which needs {size(case.needed('none'))} of {size(case.room)}"
        return case.choice("none", "none", reason, "" if fit else "see train estimate for what would fit")
    whole, shared = case.needed("ddp"), case.needed("fsdp")
    if whole <= case.room and "ddp" not in case.barred:
        reason = f"ddp: all fits on each device ({size(whole)} of {size(case.room)}), and a step sends only "
        reason += _sent(case, "ddp")
        return case.choice("ddp", "ddp", reason, _faster(case, "ddp"))
    why = case.barred.get("ddp") or f"whole it would need {size(whole)} of the {size(case.room)} of each device"
    if shared <= case.room and "fsdp" not in case.barred:
        how = case.widest()
        reason = f"fsdp: {why}, shared among {ranks} it needs {size(case.needed(how))}; {_sent(case, how)}"
        return case.choice("fsdp", how, reason, _faster(case, how))
    if "fsdp" in case.barred:
        reason = f"{why}, and it cannot be shared: {case.barred['fsdp']}"
        return case.choice(None, "ddp", reason, _cure(case, "ddp"))
    reason = (
        f"each of {ranks} devices needs {size(shared)} even when all that can be shared is, and has {size(case.room)}"
    )
    return case.choice(None, "fsdp", reason, _cure(case, "fsdp"))


def for_recipe(
    recipe: Recipe,
    shape: Shape,
    machine: Machine,
    ranks: int,
    *,
    backend: Backend | None = None,
    longest: int | None = None,
    memory: int | None = None,
    link: Link | None = None,
    barred: Mapping[str, str] | None = None,
) -> Choice:
    """Return how a recipe is trained by `ranks` processes. `backend`, `longest`: see request.wish; others: `choose`.

    `barred`: what follows from the recipe alone, where it is None.
    """
    if barred is None:
        barred = whole_only(recipe)
    wish = request.wish(recipe, shape, machine, backend=backend, longest=longest)
    least = 2 if recipe.method.kind == "kto" else 1
    batch = recipe.schedule.rows
    return choose(wish, machine, ranks, memory=memory, link=link, barred=barred, batch=batch, least=least)


def whole_only(recipe: Recipe) -> dict[str, str]:
    """Return why a recipe needs whole weights on each device, as `barred` of `choose`; empty where it does not."""
    if recipe.backend == "unsloth":
        return {"fsdp": "backend unsloth has whole weights here"}
    kind = recipe.method.kind
    return {} if kind in IN_PIECES else {"fsdp": f"method {kind} reads weights that are not gathered then"}


def _sent(case: _Case, how: Sharing) -> str:
    """Return what a step sends, and how long it takes where link and machine are known."""
    wish = case.wish
    found = sharing.traffic(wish, how, case.ranks)
    if how == "ddp":
        whose = "all" if wish.adapter == "full" else "the adapter's"
        what = f"{traffic(found.once)}, {whose} gradients"
    elif how in ("kept", "quiet"):
        what = f"a step sends {traffic(found.step(wish.accumulation))}, for its weights are gathered once and kept"
    else:
        passes = f"each of {wish.accumulation} passes" if wish.accumulation > 1 else "a step"
        what = f"{passes} sends {traffic(found.forward + found.backward)}, for its weights are gathered twice"
    step = _step(case, how)
    if step is None or case.link is None:
        return what
    took = (
        f"{duration(step.sending)} of sending at {case.link.gbit:g} Gbit/s beside {duration(step.compute)} of computing"
    )
    return f"{what}: {took}, {step.efficiency:.0%} of the ideal"


def _step(case: _Case, how: Sharing, wish: Wish | None = None) -> steps.Step | None:
    return steps.of(wish or case.wish, case.machine, how, case.ranks, case.link) if case.link else None


def _faster(case: _Case, how: Sharing) -> str:
    """Return the setting with which a step comes near the ideal, nothing where it is there or none would do."""
    if how != "ddp" and "ddp" not in case.barred:
        for wish, words in _milder(case):
            if case.fits("ddp", wish):
                return f"with {words} all would fit on each device, and ddp sends less"
    step = _step(case, how)
    if step is None or case.link is None or step.efficiency >= steps.GOOD:
        return ""
    where = (case.wish, case.machine, how, case.ranks, case.link)
    more = steps.enough(*where)
    batch = None if more else enough_rows(*where, batch=case.batch, room=case.room)
    setting = f"accumulation={more}" if more else f"batch={batch}" if batch else ""
    return f"schedule.{setting} would reach {steps.GOOD:.0%} of the ideal" if setting else ""


def enough_rows(
    wish: Wish, machine: Machine, how: Sharing, ranks: int, link: Link, *, batch: int, room: int
) -> int | None:
    """Return the least schedule.batch with which a step reaches GOOD of the ideal, None where that would not fit.

    `batch`: the one of `wish`, of which a row may be several rows of a pass. `room`: bytes that each rank may use.
    """
    for larger in range(batch + 1, _MOST + 1):
        other = replace(wish, rows=wish.rows // batch * larger)
        if advice.needed(sharing.parts(other, how, ranks), machine) > room:
            return None
        step = steps.of(other, machine, how, ranks, link)
        if step and step.efficiency >= steps.GOOD:
            return larger
    return None


def _milder(case: _Case) -> Iterator[tuple[Wish, str]]:
    """Yield changes after which every step still sees the same rows."""
    wish = case.wish
    if not wish.recompute and wish.gpu:
        yield replace(wish, recompute=True), "recompute=on"
    for batch in range(case.batch - 1, case.least - 1, -1):
        if case.batch % batch == 0:
            times = case.batch // batch
            more, again = times * wish.accumulation, wish.recompute or wish.gpu
            fewer = replace(wish, rows=wish.rows // times, accumulation=more, recompute=again)
            yield fewer, f"schedule.batch={batch} schedule.accumulation={more}"


def _cure(case: _Case, how: Sharing) -> str:
    """Return the changes with which it would fit, each of them estimated."""
    found = []
    if how == "fsdp":
        more = next((each for each in range(case.ranks + 1, _MOST + 1) if case.fits(how, ranks=each)), None)
        found += [f"{more} devices"] if more else []
    found += [words for wish, words in _milder(case) if case.fits(how, wish)][:1]
    kinds = {"full": ("lora", "qlora"), "lora": ("qlora",), "rslora": ("qlora",), "dora": ("qlora",)}
    for adapter in kinds.get(case.wish.adapter, ()):
        other = replace(case.wish, adapter=adapter, rank=case.wish.rank or 16, copies=0)
        if case.fits("ddp", other):
            found.append(f"adapter={adapter}")
            break
        if how == "fsdp" and case.fits("fsdp", other):
            found.append(f"adapter={adapter}")
            break
    shorter = case.wish.length
    while shorter >= 1024 and not found:
        shorter //= 2
        if case.fits(how, replace(case.wish, length=shorter)):
            found.append(f"schedule.max_length={shorter}")
    return f"it would fit with {', or '.join(found)}" if found else "take a smaller model, or more memory"
