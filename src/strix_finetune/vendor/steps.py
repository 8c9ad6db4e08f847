"""What the build steps of a stack ask of apt, read from the rendered Dockerfiles: pure.

A `.deb` that a step installs follows from the packages that it names, from what is installed already, and from the
archive. The first two are here; `solve` asks apt for the rest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from strix_finetune import bootstrap
from strix_finetune.dockerfile import Instruction, Word, instructions
from strix_finetune.lint import split_flags
from strix_finetune.model import Keyed, Stack
from strix_finetune.names import layer_ref
from strix_finetune.render import ROOTFS

# where a stage may begin, beside `layer:NAME` and `stage:NAME`
EMPTY = "empty"
ROOT = "rootfs"
IMAGE = "image"


@dataclass(frozen=True, slots=True)
class Install:
    """One RUN that installs `packages` ("name=version", as the lock says).

    `local`: control files of packages that the step builds and installs itself before.
    """

    packages: tuple[str, ...]
    local: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a Dockerfile: what is installed at its beginning, and what it installs."""

    name: str
    base: str
    installs: tuple[Install, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerSteps:
    """The stages of one layer, the last of which is its image. `rootfs`: the bootstrap's packages and variant."""

    layer: str
    stages: tuple[Stage, ...]
    rootfs: Mapping[str, str] = field(default_factory=dict)


def read_steps(stack: Stack, layers: Sequence[Keyed]) -> tuple[LayerSteps, ...]:
    """The steps of every layer, parents first."""
    refs = {layer_ref(layer.name, stack.target.id, layer.key): layer.name for layer in layers}
    return tuple(_layer(layer, refs) for layer in layers)


def digest(stack: Stack, steps: Sequence[LayerSteps]) -> str:
    """sha256 of what is asked of apt: other dependencies may follow when it changes."""
    apt = stack.channel.spec.apt
    layers = {
        entry.layer: [
            dict(entry.rootfs),
            [
                [stage.name, stage.base, [[*item.packages, *item.local] for item in stage.installs]]
                for stage in entry.stages
            ],
        ]
        for entry in steps
    }
    words = [apt.suite, apt.components, apt.extra_suites, apt.pins, layers]
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


def _layer(layer: Keyed, refs: Mapping[str, str]) -> LayerSteps:
    locked = {
        f"{name.removeprefix('apt ')}={version}"
        for name, version in layer.layer.inputs.items()
        if name.startswith("apt ")
    }
    stages: list[Stage] = []
    for item in instructions(layer.layer.dockerfile):
        if item.keyword == "FROM":
            stages.append(_begin(item, stages, refs))
        elif stages:
            stages[-1] = _follow(stages[-1], item, locked, layer)
    rootfs: dict[str, str] = {}
    if any(stage.base == ROOT for stage in stages):
        node = layer.layer.node
        names = node.packages.get(bootstrap.PACKAGES, ())
        rootfs = {name: layer.layer.inputs[f"apt {name}"] for name in names} | {"variant": bootstrap.variant(node)}
    return LayerSteps(layer.name, tuple(stages), rootfs)


def _begin(item: Instruction, earlier: Sequence[Stage], refs: Mapping[str, str]) -> Stage:
    _, arguments = split_flags(item)
    words = [word.text for word in arguments]
    name = words[2] if len(words) == 3 and words[1].lower() == "as" else str(len(earlier))
    known = {stage.name.lower(): f"stage:{stage.name}" for stage in earlier}
    known |= {ref.lower(): f"layer:{layer}" for ref, layer in refs.items()} | {"scratch": EMPTY}
    return Stage(name, known.get(words[0].lower(), IMAGE))


def _follow(stage: Stage, item: Instruction, locked: set[str], layer: Keyed) -> Stage:
    if item.keyword in ("ADD", "COPY") and ROOTFS in item.body.split():
        return Stage(stage.name, ROOT, stage.installs)
    if item.keyword != "RUN":
        return stage
    flags, arguments = split_flags(item)
    packages = tuple(word.text for word in arguments if word.text in locked)
    if not packages:
        return stage
    return Stage(stage.name, stage.base, (*stage.installs, Install(packages, tuple(_local(flags, arguments, layer)))))


def _local(flags: Sequence[Word], arguments: Sequence[Word], layer: Keyed) -> Iterator[str]:
    """The control files of packages that a RUN makes of the layer's own files with `dpkg-deb --build FOLDER`."""
    mounts = [dict(part.partition("=")[::2] for part in flag.text.partition("=")[2].split(",")) for flag in flags]
    words = [word.text for word in arguments]
    for command, option, folder in zip(words, words[1:], words[2:], strict=False):
        if command.rsplit("/", 1)[-1] != "dpkg-deb" or option not in ("--build", "-b"):
            continue
        for mount in mounts:
            inside = folder.removeprefix(mount.get("target", "") + "/")
            if mount.get("type") != "bind" or inside == folder:
                continue
            path = "/".join(part for part in (mount.get("source", ""), inside, "DEBIAN/control") if part)
            yield from (_text(file.source) for file in layer.layer.files if file.path == path)


def _text(source: object) -> str:
    from pathlib import Path

    content = source.read_bytes() if isinstance(source, Path) else source
    assert isinstance(content, bytes)
    return content.decode("utf-8", "replace")
