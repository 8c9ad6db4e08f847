"""Decide what to do with each layer, and say why: pure. It sees keys and the engine's images, nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from strix_finetune import names
from strix_finetune.engine.base import Image
from strix_finetune.model import Keyed, Stack


@dataclass(frozen=True, slots=True)
class Reuse:
    """The store holds the layer under its key: nothing is built. `names_lost`: moving names that must be set again.

    `retest`: its smoke tests are others than those it passed, so they are run again.
    """

    image: str
    names_lost: tuple[str, ...] = ()
    reason: str = "up to date"
    retest: bool = False


@dataclass(frozen=True, slots=True)
class Build:
    """The layer must be built, and why. `afresh`: without the engine's cache of its steps."""

    reason: str
    afresh: bool = False


@dataclass(frozen=True, slots=True)
class Pull:
    """A registry has the layer under its key: it is fetched and nothing is built."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotNeeded:
    """Nothing that will be built uses this layer."""

    reason: str = "not needed"


Action = Reuse | Build | Pull | NotNeeded


@dataclass(frozen=True, slots=True)
class Step:
    """What to do with one layer. `tags`: the names that the finished layer gets, the immutable one first."""

    layer: Keyed
    action: Action
    tags: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.layer.name


@dataclass(frozen=True, slots=True)
class Plan:
    stack: Stack
    steps: tuple[Step, ...]

    @property
    def builds(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if isinstance(step.action, Build))

    def step(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)


def tags_of(layer: Keyed, stack: Stack) -> tuple[str, ...]:
    target = stack.target.id
    tags = (names.layer_ref(layer.name, target, layer.key), names.moving_ref(layer.name, target))
    return (*tags, names.final_ref(target)) if layer.layer.node.layer.spec.final else tags


def make_plan(
    stack: Stack,
    layers: Iterable[Keyed],
    wanted: Iterable[str],
    images: Iterable[Image],
    *,
    rebuild: bool = False,
    tests: Mapping[str, Mapping[str, str]] | None = None,
    passed: Mapping[str, Mapping[str, str]] | None = None,
    offers: Callable[[Keyed], bool] | None = None,
) -> Plan:
    """Plan the wanted layers and what they are made of.

    A layer that exists under its key needs none of its parents; `rebuild` builds the wanted layers regardless.
    `tests`: layer → its smoke tests by name, and what each is; `passed`: image id → those that it passed. What exists
    and is part of what was asked for is tested again where they differ. `offers` says whether a registry has a layer
    under its key; it is asked only for what is needed and is not here, once each.
    """
    keyed = {layer.name: layer for layer in layers}
    asked = set(wanted)
    by_tag = {tag: image for image in images for tag in image.tags}
    actions: dict[str, Action] = {}
    needed, related = set(asked), set(asked)
    # children first: whether a parent is needed depends on them
    for node in reversed(stack.nodes):
        if node.name in related:
            related.update(node.needs)
        layer = keyed[node.name]
        tags = tags_of(layer, stack)
        image = by_tag.get(tags[0])
        good = image if image and image.labels.get(names.KEY) == layer.key else None
        if good and not (rebuild and node.name in asked):
            lost = tuple(tag for tag in tags[1:] if tag not in by_tag or by_tag[tag].id != good.id)
            stale = _untested((tests or {}).get(node.name, {}), (passed or {}).get(good.id))
            stale = stale if node.name in related else ""
            reason = f"up to date, {stale}" if stale else "up to date"
            actions[node.name] = Reuse(good.id, lost if node.name in needed else (), reason, bool(stale))
        elif node.name in needed and not good and offers is not None and offers(layer):
            actions[node.name] = Pull("pull, the registry has it")
        elif node.name in needed:
            previous = by_tag.get(names.moving_ref(node.name, stack.target.id))
            actions[node.name] = Build("rebuild, asked for", afresh=True) if good else Build(why(layer, previous))
            needed.update(node.needs)
        else:
            actions[node.name] = NotNeeded()
    return Plan(
        stack,
        tuple(Step(keyed[node.name], actions[node.name], tags_of(keyed[node.name], stack)) for node in stack.nodes),
    )


def _untested(tests: Mapping[str, str], passed: Mapping[str, str] | None) -> str:
    """Why a layer's tests must be run again, in a few words; empty when it passed them as they are."""
    if passed is None:
        return "the smoke tests that it passed are not known" if tests else ""
    stale = [f"{name} {'changed' if name in passed else 'added'}" for name in tests if tests[name] != passed.get(name)]
    more = f" and {len(stale) - 3} more" if len(stale) > 3 else ""
    return f"smoke test{'s' * (len(stale) > 1)} {', '.join(stale[:3])}{more}" if stale else ""


def why(layer: Keyed, previous: Image | None) -> str:
    """The reason of a rebuild in a few words: the difference between what was and what is."""
    if previous is None:
        return "build, no image of it yet"
    before = _parts(previous)
    if not before:
        return "rebuild, the present image does not say what it is made of"
    changes = list(differences(before, layer.parts))
    if not changes:
        return "rebuild, its smoke-tested image is gone"
    shown = ", ".join(changes[:3])
    return f"rebuild, {shown}" + (f" and {len(changes) - 3} more" if len(changes) > 3 else "")


def _parts(image: Image) -> Mapping[str, str]:
    """What the label says, empty when somebody wrote something else into it."""
    try:
        value = json.loads(image.labels.get(names.PARTS, "{}"))
    except (ValueError, RecursionError):
        return {}
    good = isinstance(value, dict) and all(isinstance(part, str) for part in value.values())
    return value if good else {}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> Iterable[str]:
    """What changed, the most telling first; a Dockerfile that only follows its inputs is not named."""
    told = False
    for name in sorted({*before, *after}, key=_rank):
        old, new = before.get(name), after.get(name)
        if old == new or (name == "Dockerfile" and told):
            continue
        appears = old is None or new is None
        told = told or name.split(" ")[0] in ("apt", "pip", "wheel", "archive", "image", "suite", "var")
        told = told or (appears and name.startswith(("patches/", "parent ", "builder ")))
        yield _change(name, old, new)


def _rank(name: str) -> tuple[int, str]:
    inputs = ("patches/", "apt ", "wheel ", "pip ", "archive ", "image", "suite", "var ", "files/", "python/", "data/")
    order = (*inputs, "parent ", "builder ")
    for number, prefix in enumerate(order):
        if name.startswith(prefix):
            return number, name
    return len(order), name


def _change(name: str, old: str | None, new: str | None) -> str:
    kind, _, rest = name.partition(" ")
    if kind == "parent":
        return f"parent {rest} changed" if old and new else f"parent is {rest} now" if new else f"no more on {rest}"
    if kind == "builder":
        return f"builder {rest} {'changed' if old and new else 'added' if new else 'removed'}"
    if kind in ("apt", "wheel", "suite", "image", "var", "archive"):
        label = rest or kind
        return f"{label} {old or 'none'} → {new or 'none'}"
    if name.startswith("patches/"):
        label = f"patch {name.removeprefix('patches/')}"
    elif kind == "pip":
        label = f"locked requirements '{rest}'"
    else:
        label = name.removeprefix("python/")
    return f"{label} {'changed' if old and new else 'added' if new else 'removed'}"
