"""`train estimate`: the estimate as a table or as JSON, the line before a run, and the line in a recipe's header."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from strix_train import backends
from strix_train import plan as plans
from strix_train.errors import InputError, Problem
from strix_train.estimate import advice, auto, configs, links, machines, nodes, request, strategy
from strix_train.estimate.advice import Estimate, Verdict
from strix_train.estimate.machines import Machine
from strix_train.estimate.memory import Backend
from strix_train.estimate.shapes import Shape
from strix_train.estimate.words import duration, size
from strix_train.names import find_model, find_recipe
from strix_train.plan import Plan
from strix_train.recipe.adapter import Full, LowRank
from strix_train.recipe.load import Loaded, load

BACKENDS: tuple[Backend, ...] = ("unsloth", "hf")
ADAPTERS = ("full", "lora", "lora8bit", "qlora")
_PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "workspace")
NOTE = "estimate, not measured on this device"


def run(
    word: str, settings: Sequence[str], *, device: str, as_json: bool, count: int = 1, link: str | None = None
) -> tuple[int, str]:
    """Return the exit code (1 where it does not fit) and the text. Raises InputError.

    `count`: machines that share the work, over a `link` of links.named.
    """
    wire = links.named(link) if link else None
    if wire and count < 2:
        raise InputError(Problem("a link is between machines, and there is one", cure="give --nodes 2 as well"))
    loaded = load(find_recipe(word), settings)
    model = find_model(loaded.recipe.model, loaded.path.parent, loaded.place("model"))
    shape, source = configs.find(model, loaded.place("model"))
    machine = machines.named(device)
    longest = _longest(word, settings)
    chosen = auto.settings(loaded, settings, machine, longest=longest)
    if chosen:
        settings = [*settings, *chosen]
        loaded = load(loaded.path, settings)
    found = advice.verdict(loaded, settings, shape, machine, longest=longest)
    facts = _facts(loaded, shape, source, machine, found, longest) if as_json else {}
    lines = [] if as_json else [*_lines(loaded, shape, source, machine, found, longest)]
    fits = found.kind != "does not fit"
    if count > 1:
        choice = strategy.for_recipe(loaded.recipe, shape, machine, count, longest=longest, link=wire)
        wish = request.wish(loaded.recipe, shape, machine, longest=longest)
        ways = nodes.ways(wish, machine, count, wire, batch=loaded.recipe.schedule.rows)
        facts["nodes"] = nodes.facts(ways, choice, count, wire)
        lines += ["", *nodes.lines(ways, choice, count, wire)]
        fits = choice.strategy is not None
    return int(not fits), json.dumps(facts, indent=2, ensure_ascii=False) if as_json else "\n".join(lines)


def _longest(word: str, settings: Sequence[str]) -> int | None:
    """Return the tokens of the longest row, where rows and tokenizer are at hand and were all looked at."""
    try:
        return longest_of(plans.make(word, settings, with_backend=False, fetch=False))
    except InputError:
        return None  # the estimate is for rows that fill max_length then


def longest_of(plan: Plan) -> int | None:
    """Return the tokens of the longest row of a plan, where all were counted."""
    train = [(index, each.data) for index, each in enumerate(plan.sets) if each.role == "train"]
    longest = 0
    for index, data in train:
        found = plan.lengths.get(index)
        if data is None or found is None or found.sampled < len(data):
            return None
        longest = max(longest, found.longest)
    return longest or None


def preflight(plan: Plan, machine: Machine, backend: Backend, *, ranks: int = 1) -> tuple[str, str] | None:
    """Return a word and a sentence for before a run, None where the model's size is not known.

    `ranks`: processes that train together; those of this machine share its memory where it is no GPU's.
    """
    try:
        shape, _ = configs.find(plan.model)
    except InputError:
        return None
    longest = longest_of(plan)
    if ranks > 1:
        room = machine.usable // (1 if machine.is_gpu else int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        wire = links.measured(os.environ)
        fits, text = nodes.before(
            plan.loaded.recipe, shape, machine, ranks, room=room, link=wire, backend=backend, longest=longest
        )
        return "estimate" if fits else "warning", text
    found = advice.of_recipe(plan.loaded.recipe, shape, machine, backend=backend, longest=longest)
    pace = f", about {duration(found.speed.seconds)} a step" if found.speed else ""
    note = "" if machine.measured else f" ({NOTE})"
    if found.fits(machine):
        return "estimate", f"{size(found.needed)} of {size(machine.usable)}{pace}{note}"
    proposal = advice.verdict(plan.loaded, (), shape, machine, longest=longest)
    return "warning", f"the estimate is {size(found.needed)}: {sentence(proposal, machine)}{note}"


def each_backend(loaded: Loaded, shape: Shape, machine: Machine, longest: int | None) -> dict[Backend, Estimate | None]:
    """Return the estimate by backend, None for one that cannot train this."""
    recipe = loaded.recipe
    found: dict[Backend, Estimate | None] = {}
    for backend in BACKENDS:
        cannot = backend == "unsloth" and (
            backends.unable(recipe.method.kind, recipe.adapter.kind)
            or (recipe.adapter.kind == "lora8bit" and not machine.is_gpu)
        )
        estimate = advice.of_recipe(recipe, shape, machine, backend=backend, longest=longest)
        found[backend] = None if cannot else estimate
    return found


def others(loaded: Loaded, shape: Shape, machine: Machine, longest: int | None) -> dict[str, dict[Backend, Estimate]]:
    """Return the estimates of the usual adapters, everything else as in the recipe."""
    recipe, found = loaded.recipe, dict[str, dict[Backend, Estimate]]()
    low = recipe.adapter if isinstance(recipe.adapter, LowRank) else LowRank()
    whole = recipe.adapter if isinstance(recipe.adapter, Full) else Full(kind="full")
    for adapter in ADAPTERS:
        other = recipe.model_copy(update={"adapter": whole if adapter == "full" else _of_kind(low, adapter)})
        found[adapter] = {
            backend: advice.of_recipe(other, shape, machine, backend=backend, longest=longest) for backend in BACKENDS
        }
    return found


def _of_kind(adapter: LowRank, kind: str) -> LowRank:
    return adapter.model_copy(update={"kind": kind})


def sentence(found: Verdict, machine: Machine) -> str:
    """Return the verdict."""
    room = f"{size(machine.usable)} ({machine.name})"
    words = " ".join(f"--set {_quoted(setting)}" for setting in found.settings)
    if found.after is None:
        return f"does not fit in {room}, whatever is changed; take a smaller model, or more memory"
    if found.kind == "fits":
        return f"fits: {size(found.after.needed)} of {room}"
    if found.kind == "fits with":
        return f"fits with {words}: {size(found.after.needed)} of {room}"
    return f"does not fit, try {words}: {size(found.after.needed)} of {room}"


def _quoted(setting: str) -> str:
    return f"'{setting}'" if any(sign in setting for sign in " {}[]") else setting


def _lines(
    loaded: Loaded, shape: Shape, source: str, machine: Machine, found: Verdict, longest: int | None
) -> Iterator[str]:
    recipe, wish = loaded.recipe, request.wish(loaded.recipe, shape, machine, longest=longest)
    yield f"recipe     {loaded.path}"
    yield f"model      {recipe.model}: {shape.weights / 1e9:.2f} billion weights, by {source}"
    if not shape.exact:
        yield f"warning    {shape.kind} is no family that is counted: taken for one like Llama"
    yield f"device     {machine.name}: {size(machine.usable)} for training"
    rank = f" r={wish.rank}" if wish.rank else ""
    again = "recomputed" if wish.recompute else "not recomputed"
    rows = f"{wish.rows} rows of {wish.length} tokens × {wish.accumulation}"
    yield f"run        {recipe.method.kind}, {wish.adapter}{rank}, {rows}, {wish.bits} bits, {again}"
    if longest is None:
        yield "           rows are taken to fill schedule.max_length"
    yield ""
    both = each_backend(loaded, shape, machine, longest)
    yield f"{'':<14}" + "".join(f"{name + (' *' if name == wish.backend else ''):>14}" for name in BACKENDS)
    for part in _PARTS:
        yield f"{part:<14}" + "".join(_cell(size(getattr(each.parts, part)) if each else "") for each in both.values())
    yield f"{'peak':<14}" + "".join(_cell(size(each.parts.total) if each else "not trained") for each in both.values())
    if any(each and each.parts.offloaded for each in both.values()):
        yield f"{'offloaded':<14}" + "".join(
            _cell(size(each.parts.offloaded) if each else "") for each in both.values()
        )
    yield f"{'needed':<14}" + "".join(_cell(size(each.needed) if each else "") for each in both.values())
    yield f"{'step':<14}" + "".join(_cell(_step(each)) for each in both.values())
    yield ""
    yield "needed with    " + "".join(f"{name:>14}" for name in ADAPTERS)
    for backend in BACKENDS:
        row = others(loaded, shape, machine, longest)
        cells = (
            size(row[name][backend].needed) + (" " if row[name][backend].fits(machine) else "!") for name in ADAPTERS
        )
        yield f"{backend:<15}" + "".join(f"{cell:>14}" for cell in cells)
    yield "               (* taken here, ! more than there is)"
    yield ""
    yield f"verdict    {sentence(found, machine)}"
    if not machine.measured:
        yield f"           ({NOTE})"


def _cell(text: str) -> str:
    return f"{text:>14}"


def _step(found: Estimate | None) -> str:
    if found is None:
        return ""
    return duration(found.speed.seconds) if found.speed else "unknown"


def _facts(
    loaded: Loaded, shape: Shape, source: str, machine: Machine, found: Verdict, longest: int | None
) -> dict[str, Any]:
    wish = request.wish(loaded.recipe, shape, machine, longest=longest)

    def one(each: Estimate | None) -> dict[str, Any] | None:
        if each is None:
            return None
        pace = each.speed
        return {
            **asdict(each.parts),
            "peak": each.parts.total,
            "needed": each.needed,
            "fits": each.fits(machine),
            "seconds": round(pace.seconds, 4) if pace else None,
            "tokens_per_s": round(pace.tokens_per_s, 1) if pace else None,
        }

    return {
        "recipe": str(loaded.path),
        "model": {"name": loaded.recipe.model, "source": source, "family": shape.kind, "weights": shape.weights},
        "device": {"name": machine.name, "kind": machine.kind, "usable": machine.usable, "measured": machine.measured},
        "run": {
            "adapter": wish.adapter,
            "backend": wish.backend,
            "rows": wish.rows,
            "length": wish.length,
            "accumulation": wish.accumulation,
            "bits": wish.bits,
            "recompute": wish.recompute,
            "trainable": wish.trainable,
        },
        "backends": {name: one(each) for name, each in each_backend(loaded, shape, machine, longest).items()},
        "adapters": {
            name: {backend: one(each) for backend, each in row.items()}
            for name, row in others(loaded, shape, machine, longest).items()
        },
        "verdict": {"kind": found.kind, "settings": list(found.settings), "sentence": sentence(found, machine)},
    }
