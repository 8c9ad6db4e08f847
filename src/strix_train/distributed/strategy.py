"""How the processes share one run: the recipe's wish, or what fits and sends least; what FSDP keeps gathered."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from strix_train.device import Device
from strix_train.distributed import links as sending
from strix_train.distributed import zero
from strix_train.distributed.shards import How, Keep
from strix_train.errors import InputError, Problem
from strix_train.estimate import advice, configs, links, machines, request, sharing, steps
from strix_train.estimate import strategy as estimated
from strix_train.estimate.memory import Backend, Wish
from strix_train.estimate.shapes import Shape
from strix_train.plan import Plan
from strix_train.refusals import IN_PIECES

Kind = Literal["none", "ddp", "fsdp", "deepspeed"]
# Adapters on weights that do not come apart.
_WHOLE = {"fsdp": ("lora8bit",), "deepspeed": ("qlora", "lora8bit")}
# GPUs of one machine talk at hundreds of Gbit/s.
_SLOW = 200.0


@dataclass(frozen=True, slots=True)
class Shared:
    """`kind`: how; `reason`: a sentence for the user. `how`: of FSDP. `bucket`: MiB that DDP sends at once;
    `stage`: of DeepSpeed.

    `direct`: a whole model may be loaded onto the device before it is shared; else it is loaded into memory. `advice`:
    what to change, as the estimate has it, or empty; `fits`: whether the estimate says that it fits.
    """

    kind: Kind = "none"
    reason: str = ""
    advice: str = ""
    fits: bool = True
    how: How = field(default_factory=How)
    bucket: int = sending.USUAL
    stage: int = 0
    direct: bool = True

    @property
    def whole(self) -> bool:
        """Whether each process holds every weight of its own."""
        return self.kind in ("none", "ddp")


def decide(plan: Plan, device: Device, world: int, precision: str, backend: Backend) -> Shared:
    """Return how `world` processes share a plan. Raises InputError where the recipe's wish cannot be met."""
    loaded, wish = plan.loaded, plan.loaded.recipe.strategy
    adapter = loaded.recipe.adapter.kind
    if world == 1:
        return Shared(reason="one process, which shares with nobody" if wish.kind not in ("auto", "none") else "")
    if wish.kind == "none":
        what = f"strategy none is for one process, and {world} were started"
        raise InputError(Problem(what, loaded.place("strategy"), "write strategy: auto, or start one"))
    link, machine = links.measured(os.environ), machines.of_device(device)
    room = machine.usable if device.is_gpu else machine.usable // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    shape = _shape(plan)
    asked = request.wish(loaded.recipe, shape, machine, backend=backend) if shape else None
    if wish.kind == "auto":
        found = _auto(plan, shape, machine, world, room, link, backend)
    else:
        found = Shared(wish.kind, "asked for")
    kind = found.kind
    learning = asked.trainable * asked.learning if asked else 0
    if kind == "ddp":
        return replace(found, bucket=sending.bucket(learning, link))
    if precision == "fp16":
        what = f"strategy {kind} and precision fp16: each process would find overflows of its own"
        raise InputError(Problem(what, loaded.place("strategy"), "write precision: bf16, or strategy: ddp"))
    if adapter in _WHOLE[kind]:
        what = f"strategy {kind} cannot share the quantized weights of adapter {adapter}"
        raise InputError(Problem(what, loaded.place("strategy"), "write strategy: ddp, or adapter: lora"))
    direct = adapter in ("qlora", "lora8bit") or not device.is_gpu
    if asked and not direct:
        direct = sharing.parts(replace(asked, rows=1), "ddp", world).weights < room / 2
    if kind == "deepspeed":
        return replace(found, stage=wish.stage)
    narrow = adapter == "full" and precision == "bf16" and device.is_gpu
    how = keeping(asked, machine, world, room, link, wish.keep) if asked else How(_named(wish.keep) or "nothing")
    # what stays whole has to be on the device from the beginning
    return replace(found, how=replace(how, narrow=narrow), direct=direct or how.keep == "frozen")


def _shape(plan: Plan) -> Shape | None:
    """Return the shape of a plan's model, None where it is not known."""
    try:
        return configs.find(plan.model)[0]
    except InputError:
        return None


def _auto(
    plan: Plan,
    shape: Shape | None,
    machine: machines.Machine,
    world: int,
    room: int,
    link: links.Link | None,
    backend: Backend,
) -> Shared:
    if shape is None:
        return Shared("ddp", "auto: the model's size is not known")
    barred = unable(plan.loaded.recipe.method.kind, backend if plan.backend.firm else "hf")
    found = estimated.for_recipe(
        plan.loaded.recipe,
        shape,
        machine,
        world,
        backend=backend,
        memory=room,
        link=link,
        barred={"fsdp": barred} if barred else {},
    )
    # where nothing fits by the estimate, it is tried, with a warning: the device itself shall say so
    reason = f"auto: {found.reason.removeprefix('ddp: ').removeprefix('fsdp: ')}"
    return Shared(found.strategy or "ddp", reason, advice=found.cure, fits=found.strategy is not None)


def unable(method: str, backend: str) -> str:
    """Return why a model cannot be shared in pieces; empty where it can."""
    if backend == "unsloth":
        return "backend unsloth has whole weights here"
    return "" if method in IN_PIECES else f"method {method} reads weights that are not gathered then"


def _named(word: str) -> Keep | None:
    found: dict[str, Keep] = {"nothing": "nothing", "step": "step", "frozen": "frozen"}
    return found.get(word)


def keeping(
    asked: Wish, machine: machines.Machine, world: int, room: int, link: links.Link | None, wanted: str = "auto"
) -> How:
    """Return what FSDP keeps gathered: the most that fits, and frozen weights only where a slow link asks for it."""

    def fits(how: sharing.Sharing) -> bool:
        return advice.needed(sharing.parts(asked, how, world), machine) <= room

    quiet = fits("quiet")
    named = _named(wanted)
    if named:
        return How(named, quiet or named == "frozen")
    slow = link is not None and link.gbit < _SLOW
    if slow and link is not None:
        guessed = steps.of(asked, machine, "quiet", world, link)
        slow = guessed is None or guessed.efficiency < steps.GOOD
    if slow and asked.adapter != "full" and fits("ddp"):
        return How("frozen", True)
    if quiet:
        return How("step", True)
    return How("step" if fits("kept") else "nothing", False)


def told(shared: Shared) -> str:
    """Return the line about it."""
    words: dict[Keep, str] = {
        "nothing": "weights are gathered layer by layer, in every pass",
        "step": "weights are gathered once a step",
        "frozen": "what learns is shared, frozen weights stay whole",
    }
    if shared.kind == "fsdp":
        return f"fsdp ({shared.reason}): {words[shared.how.keep]}"
    if shared.kind == "ddp":
        return f"ddp ({shared.reason}), {shared.bucket} MiB of gradients at once"
    stage = f", stage {shared.stage}" if shared.stage else ""
    return f"{shared.kind}{stage} ({shared.reason})"


def facts_of(shared: Shared) -> dict[str, Any]:
    """Return what all processes must have in common, by names for the sentence where they have not."""
    found = {"kind": shared.kind, **asdict(shared.how)}
    return found | {"bucket": shared.bucket, "stage": shared.stage, "direct": shared.direct}


def arguments(shared: Shared) -> dict[str, Any]:
    """Return the trainer's arguments that go with it."""
    if shared.kind == "deepspeed":
        return {"deepspeed": zero.config(shared.stage)}
    if shared.kind != "ddp":
        return {}
    # buffers never differ: sending them before every pass would cost a round trip for nothing
    return {"ddp_bucket_cap_mb": shared.bucket, "ddp_broadcast_buffers": False, "ddp_find_unused_parameters": False}
