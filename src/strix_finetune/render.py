"""Render and key the layers of a stack, parents first: pure but for reading the definitions' files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from strix_finetune import key as keys
from strix_finetune.context import layer_files
from strix_finetune.errors import DefinitionError, InputError, LockError, Problem, TemplateError, nearest
from strix_finetune.lint import lint
from strix_finetune.lockmodel import WheelSetLock
from strix_finetune.model import ContextFile, Keyed, Node, Project, RenderedLayer, Stack
from strix_finetune.names import layer_ref
from strix_finetune.paths import Folders
from strix_finetune.schema import LayerFile, LayerTuning
from strix_finetune.templates import Templates
from strix_finetune.wanted import set_place

# where the root file system of a bootstrapped layer lies in its context
ROOTFS = "inputs/rootfs.tar"
# stands for the key of a layer that has none because it is at fault
NO_KEY = "0" * 64


def wheel_folder(name: str) -> str:
    """Where a set of wheels lies in the context of a layer that installs it, with its requirements.txt."""
    return f"inputs/wheels/{name}"


def _no_wheels(name: str) -> WheelSetLock:
    raise LockError(f"the lock has no set of wheels '{name}'", cure="run 'strix-finetune lock'")


@dataclass(frozen=True, slots=True)
class Locked:
    """What rendering needs of a lock. The functions raise LockError when an entry is missing.

    `apt(packages)` → name → exact version; `pip(set)` → the requirements text with hashes; `image(name)` →
    name@sha256:…; `wheels(set)` → the files of the set.
    """

    apt: Callable[[tuple[str, ...]], Mapping[str, str]]
    pip: Callable[[str], bytes]
    image: Callable[[str], str]
    wheels: Callable[[str], WheelSetLock] = _no_wheels


def render_stack(project: Project, chosen: Stack, locked: Locked, folders: Folders) -> tuple[Keyed, ...]:
    """Every layer of the stack with its key. Raises one InputError with all faults of all layers."""
    templates = Templates(project)
    known = _known_sets(project)
    done: dict[str, Keyed] = {}
    names: dict[str, str] = {}
    faults: list[InputError] = []
    for node in chosen.nodes:
        try:
            done[node.name] = _render(templates, chosen, node, locked, folders, names, known)
            names[node.name] = done[node.name].key
        except InputError as error:
            faults.append(error)
            # its children are rendered all the same: they may have faults of their own
            names[node.name] = NO_KEY
    if faults:
        raise type(faults[0])([problem for error in faults for problem in error.problems])
    return tuple(done.values())


def _known_sets(project: Project) -> dict[str, set[str]]:
    """The names of all sets that some stack may have: what a template may ask for."""
    tunings = [tuning for channel in project.channels.values() for tuning in channel.spec.layers.values()]
    declaring: list[LayerFile | LayerTuning] = [*(layer.spec for layer in project.layers.values()), *tunings]
    return {
        "pip": {name for holder in declaring for name in holder.pip},
        "wheels": {name for holder in declaring for name in holder.wheels},
    }


def _render(
    templates: Templates,
    chosen: Stack,
    node: Node,
    locked: Locked,
    folders: Folders,
    made: Mapping[str, str],
    known_sets: Mapping[str, set[str]],
) -> Keyed:
    """`made`: layer → key of what this one is made of."""
    inputs: dict[str, str] = {}
    extra: dict[str, bytes] = {}
    used: set[tuple[str, str]] = set()

    def refs(name: str) -> str:
        return layer_ref(name, chosen.target.id, made[name])

    def check(what: str, name: str, known: Iterable[str], where: str) -> None:
        if name not in known:
            cure = nearest(name, sorted(known))
            raise TemplateError(Problem(f"the layer '{node.name}' has no {what} '{name}' in {where}", cure=cure))

    def apt(name: str) -> str:
        check("package list", name, node.packages, "[packages]")
        versions = locked.apt(node.packages[name])
        inputs.update({f"apt {package}": version for package, version in versions.items()})
        if pins := chosen.channel.spec.apt.pins:
            # they choose the suite of every dependency, which the lock does not name
            inputs["pins"] = keys.short("\n\n".join(pins).encode())
        return " ".join(f"{package}={version}" for package, version in versions.items())

    def pip(name: str) -> str:
        check("requirement set", name, node.pip, "[pip]")
        text = locked.pip(name)
        used.add(("pip", name))
        path = f"inputs/pip/{name}.txt"
        extra[path] = text
        inputs[f"pip {name}"] = keys.short(text)
        return path

    def wheels(name: str) -> str:
        check("set of wheels", name, node.wheels, "[wheels]")
        held = locked.wheels(name)
        extra[f"{wheel_folder(name)}/requirements.txt"] = held.text.encode()
        # the text has the whole hashes, and is part of the key as every file is
        inputs.update({f"wheel {wheel.name}": f"{wheel.version} ({wheel.sha256[:12]})" for wheel in held.wheels})
        used.add(("wheels", name))
        return wheel_folder(name)

    def has(kind: str, name: str) -> bool:
        if name not in known_sets[kind]:
            what = "requirement set" if kind == "pip" else "set of wheels"
            raise TemplateError(
                Problem(f"no layer and no channel has a {what} '{name}'", cure=nearest(name, sorted(known_sets[kind])))
            )
        return any(name in getattr(other, kind) for other in chosen.nodes)

    def archive(name: str) -> str:
        check("archive", name, node.archives, "[archives]")
        entry = node.archives[name]
        file = entry.url.rsplit("/", 1)[-1]
        for other, held in node.archives.items():
            if held.url.rsplit("/", 1)[-1] == file and held.sha256 != entry.sha256:
                message = f"the archives '{other}' and '{name}' would both be the file '{file}'"
                raise TemplateError(Problem(message, cure="take one of them from an address with another name"))
        inputs[f"archive {name}"] = entry.sha256
        return f"inputs/archives/{file}"

    def builder(name: str) -> str:
        check("builder", name, node.builders, "builders")
        return refs(name)

    files = layer_files(node, folders)
    bootstrap = chosen.channel.spec.bootstrap
    values: dict[str, Any] = {
        "layer": SimpleNamespace(name=node.name, description=node.layer.spec.description),
        "target": SimpleNamespace(
            id=chosen.target.id,
            kind=chosen.target.spec.kind,
            family=chosen.target.spec.family,
            wave_size=chosen.target.spec.wave_size,
        ),
        "channel": SimpleNamespace(
            name=chosen.channel.name,
            python=chosen.channel.spec.python,
            notice=chosen.channel.spec.notice,
            suite=chosen.channel.spec.apt.suite,
            bootstrap=SimpleNamespace(source=bootstrap.source),
        ),
        "vars": dict(node.vars),
        "parent": refs(node.parent) if node.parent else "",
        "apt": apt,
        "pip": pip,
        "wheels": wheels,
        "has_pip": functools.partial(has, "pip"),
        "has_wheels": functools.partial(has, "wheels"),
        "archive": archive,
        "builder": builder,
        # in the order of the series, not of the names
        "patches": [f"patches/{patch.name}" for patch in node.patches],
    }
    if node.parent is None and bootstrap.source == "mmdebstrap":
        values["rootfs"] = ROOTFS
    elif node.parent is None:
        values["base_image"] = locked.image(bootstrap.image)
        inputs["image"] = values["base_image"]
    rendered = templates.render(node.name, values)
    if ROOTFS in rendered.text:
        # what bootstrap.py makes the root file system of
        versions = locked.apt(node.packages.get("rootfs", ()))
        inputs.update({f"apt {package}": version for package, version in versions.items()})
        inputs["suite"] = chosen.channel.spec.apt.suite
        inputs.update({f"var {name}": str(value) for name, value in node.vars.items()})
    problems = lint(rendered)
    if problems:
        raise TemplateError(problems)
    if problems := _unused(node, chosen, used):
        raise DefinitionError(problems)
    every = (*files, *(ContextFile(path, content) for path, content in extra.items()))
    layer = RenderedLayer(
        node, rendered.text, tuple(sorted(every, key=lambda file: file.path)), inputs, rendered.locate
    )
    return keys.keyed(layer, {name: made[name] for name in node.needs})


def _unused(node: Node, chosen: Stack, used: set[tuple[str, str]]) -> list[Problem]:
    """Sets that the channel gives to a layer which does not install them: they would be locked for nothing."""
    tuning = chosen.channel.spec.layers.get(node.name)
    given = [(kind, name) for kind in ("pip", "wheels") for name in (getattr(tuning, kind) if tuning else ())]
    return [
        Problem(
            f"the template of '{node.name}' does not install the set '{name}' on this channel",
            set_place(chosen, node, kind, name),
            f"call {kind}('{name}') in it, or remove the set",
        )
        for kind, name in given
        if (kind, name) not in used
    ]
