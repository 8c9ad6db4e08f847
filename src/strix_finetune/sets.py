"""Sets of Python distributions, as layers and channels declare them: what is wrong with them, each with its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from strix_finetune import graph
from strix_finetune.errors import Place, Problem, nearest
from strix_finetune.model import Channel, LayerDef, Target
from strix_finetune.pep508 import bound_fault, requirement_fault
from strix_finetune.schema import Index, PipSet, WheelSet

_BRACES = re.compile(r"\{[^{}]*\}|[{}]")
# stands for a target's id while a requirement is read
_SAMPLE = "gfx0000"
# what a normalized name can hold, and the two wildcards
_PATTERN = re.compile(r"[a-z0-9*?-]+")

At = Callable[..., Place]


def check_layer_sets(layer: LayerDef, indexes: Collection[str], problems: list[Problem]) -> None:
    """What the layer itself says, before a user's changes are in it: those have lines of their own.

    `indexes`: those of all channels. A channel without the index of a layer's own set does not have that layer.
    """

    def at(*keys: str | int) -> Place:
        return Place(layer.source.path, layer.source.positions.line(keys))

    problems += _set_faults(layer.spec.pip, layer.spec.wheels, at)
    for name, asked in layer.spec.wheels.items():
        if asked.index not in indexes:
            message = f"no channel has an index '{asked.index}'"
            problems.append(Problem(message, at("wheels", name, "index"), nearest(asked.index, sorted(indexes))))


def check_channel_sets(
    channel: Channel, layers: Mapping[str, LayerDef], targets: Mapping[str, Target], problems: list[Problem]
) -> None:
    """The channel's indexes, the sets that it gives to layers, and how all sets of its stacks fit together."""
    spec, source = channel.spec, channel.source

    def at(*keys: str | int) -> Place:
        return Place(source.path, source.positions.line(keys))

    for name, index in spec.indexes.items():
        problems += _index_faults(name, index, at)
    for layer, tuning in spec.layers.items():
        problems += _set_faults(tuning.pip, tuning.wheels, lambda *keys, layer=layer: at("layers", layer, *keys))
    found: dict[Problem, None] = {}
    for target in targets.values():
        if not spec.targets or target.id in spec.targets:
            present = [layer for layer in layers.values() if not graph.lacks(layer, target, channel)]
            found |= dict.fromkeys(_stack_faults(present, channel))
    problems += found


def _set_faults(pip: Mapping[str, PipSet], wheels: Mapping[str, WheelSet], at: At) -> Iterator[Problem]:
    for name, asked in pip.items():
        for number, text in enumerate(asked.requirements):
            if fault := requirement_fault(text):
                yield Problem(fault, at("pip", name, "requirements", number), "write it as name==version")
    for name, wanted in wheels.items():
        yield from _wheel_set_faults(name, wanted, at)


def _wheel_set_faults(name: str, wanted: WheelSet, at: At) -> Iterator[Problem]:
    seen: set[str] = set()
    for number, text in enumerate(wanted.requirements):
        place = at("wheels", name, "requirements", number)
        unknown = [found for found in _BRACES.findall(text) if found != "{target}"]
        if unknown:
            yield Problem(f"'{unknown[0]}' in '{text}' stands for nothing", place, "only {target} is replaced")
            continue
        sample = text.replace("{target}", _SAMPLE)
        if fault := requirement_fault(sample) or bound_fault(sample):
            yield Problem(fault.replace(_SAMPLE, "{target}"), place, "write it as name==version or name>=version")
            continue
        project = _project(sample)
        if project in seen:
            shown = project.replace(_SAMPLE, "{target}")
            yield Problem(f"the set '{name}' asks for '{shown}' twice", place, "keep one of them")
        seen.add(project)
    for number, pattern in enumerate(wanted.follow):
        if not _PATTERN.fullmatch(pattern):
            cure = "names are compared in lower case with '-' between their words; * and ? stand for others"
            yield Problem(f"'{pattern}' matches no name of a distribution", at("wheels", name, "follow", number), cure)


def _project(requirement: str) -> str:
    from packaging.requirements import Requirement

    from strix_finetune.lockmodel import normalize

    return normalize(Requirement(requirement).name)


def _index_faults(name: str, index: Index, at: At) -> Iterator[Problem]:
    if index.url.startswith("http://"):
        from strix_finetune.netconf import is_loopback

        if not is_loopback(index.url):
            message = f"the index '{name}' is not encrypted"
            yield Problem(message, at("indexes", name, "url"), "write https://; plain http is for this host alone")
    for number, status in enumerate(index.absent):
        if not 400 <= status < 500:
            message = f"HTTP {status} cannot mean that the index '{name}' does not serve a project"
            yield Problem(message, at("indexes", name, "absent", number), "name one of 400 to 499")


def _stack_faults(layers: Sequence[LayerDef], channel: Channel) -> Iterator[Problem]:
    """What is wrong between the layers of one stack: indexes that the channel lacks, and two sets of one name."""
    seen: dict[tuple[str, str], str] = {}
    words = {"pip": "requirement set", "wheels": "set of wheels"}
    for layer in layers:
        tuning = channel.spec.layers.get(layer.name)
        for kind in ("pip", "wheels"):
            own = getattr(layer.spec, kind)
            tuned = getattr(tuning, kind) if tuning else {}
            for name, asked in {**own, **tuned}.items():
                source = channel.source if name in tuned else layer.source
                keys = ("layers", layer.name, kind, name) if name in tuned else (kind, name)
                if (kind, name) in seen:
                    message = f"'{layer.name}' and '{seen[kind, name]}' both have a {words[kind]} '{name}'"
                    yield Problem(message, Place(source.path, source.positions.line(keys)), "rename one of them")
                seen.setdefault((kind, name), layer.name)
                if name in tuned and isinstance(asked, WheelSet) and asked.index not in channel.spec.indexes:
                    message = f"the channel '{channel.name}' has no index '{asked.index}'"
                    place = Place(source.path, source.positions.line((*keys, "index")))
                    yield Problem(message, place, nearest(asked.index, list(channel.spec.indexes)))
