"""Render and key the layers of a stack, parents first: pure but for reading the definitions' files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from strix_finetune import key as keys
from strix_finetune.context import layer_files
from strix_finetune.errors import Problem, TemplateError
from strix_finetune.lint import lint
from strix_finetune.model import ContextFile, Keyed, Node, Project, RenderedLayer, Stack
from strix_finetune.names import layer_ref
from strix_finetune.paths import Folders
from strix_finetune.templates import Templates

# where the root file system of a bootstrapped layer lies in its context
ROOTFS = "inputs/rootfs.tar"


@dataclass(frozen=True, slots=True)
class Locked:
    """What rendering needs of a lock. The functions raise LockError when an entry is missing.

    `apt(packages)` → name → exact version; `pip(set)` → the requirements text with hashes; `image(name)` →
    name@sha256:….
    """

    apt: Callable[[tuple[str, ...]], Mapping[str, str]]
    pip: Callable[[str], bytes]
    image: Callable[[str], str]


def render_stack(project: Project, chosen: Stack, locked: Locked, folders: Folders) -> tuple[Keyed, ...]:
    """Every layer of the stack with its key. Raises one TemplateError with all faults of all templates."""
    templates = Templates(project)
    done: dict[str, Keyed] = {}
    problems: list[Problem] = []
    for node in chosen.nodes:
        if any(name not in done for name in node.needs):
            continue
        try:
            done[node.name] = _render(templates, chosen, node, locked, folders, done)
        except TemplateError as error:
            problems.extend(error.problems)
    if problems:
        raise TemplateError(problems)
    return tuple(done.values())


def _render(
    templates: Templates, chosen: Stack, node: Node, locked: Locked, folders: Folders, done: Mapping[str, Keyed]
) -> Keyed:
    inputs: dict[str, str] = {}
    extra: dict[str, bytes] = {}

    def refs(name: str) -> str:
        return layer_ref(name, chosen.target.id, done[name].key)

    def apt(name: str) -> str:
        if name not in node.packages:
            raise TemplateError(f"the layer '{node.name}' has no package list '{name}'")
        versions = locked.apt(node.packages[name])
        inputs.update({f"apt {package}": version for package, version in versions.items()})
        return " ".join(f"{package}={version}" for package, version in versions.items())

    def pip(name: str) -> str:
        if name not in node.layer.spec.pip:
            raise TemplateError(f"the layer '{node.name}' has no requirement set '{name}'")
        text = locked.pip(name)
        path = f"inputs/pip/{name}.txt"
        extra[path] = text
        inputs[f"pip {name}"] = keys.short(text)
        return path

    def archive(name: str) -> str:
        if name not in node.archives:
            raise TemplateError(f"the layer '{node.name}' has no archive '{name}'")
        entry = node.archives[name]
        inputs[f"archive {name}"] = entry.sha256
        return f"inputs/archives/{entry.url.rsplit('/', 1)[-1]}"

    def builder(name: str) -> str:
        if name not in node.builders:
            raise TemplateError(f"'{name}' is not among the builders of '{node.name}'")
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
        "archive": archive,
        "builder": builder,
        "patches": [file.path for file in files if file.path.startswith("patches/")],
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
    every = (*files, *(ContextFile(path, content) for path, content in extra.items()))
    layer = RenderedLayer(node, rendered.text, tuple(sorted(every, key=lambda file: file.path)), inputs)
    return keys.keyed(layer, {name: done[name].key for name in node.needs})
