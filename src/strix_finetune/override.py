"""A user's changes without a fork: variables, package lists, requirements, patches, templates, layers.

Precedence: what layer.toml says, then the channel's tuning of it, then the user. So variables and package lists are
only checked here and merged when a stack is made (graph.py), after the channel has had its say. Requirements are edited
here in the layer's own sets, and there in those that the channel puts in their place.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from strix_finetune.errors import Place, Problem, nearest
from strix_finetune.model import Edit, LayerDef, Source
from strix_finetune.pep508 import requirement_fault
from strix_finetune.schema import LayerOverride, LayerTuning, ListEdit, OverrideFile, PackageName, Value
from strix_finetune.tomlfile import is_file


@dataclass(frozen=True, slots=True)
class Override:
    """`folder` as given by --override, and what its override.toml says."""

    folder: Path
    spec: OverrideFile
    source: Source


def apply_override(
    layers: Mapping[str, LayerDef],
    change: Override,
    problems: list[Problem],
    broken: Collection[str] = (),
    tunings: Sequence[Mapping[str, LayerTuning]] = (),
) -> dict[str, LayerDef]:
    """Return the layers with the user's changes in them; faults are appended to `problems`.

    `broken`: names of layers that could not be read, of which nothing more is said. `tunings`: what each channel
    changes, by layer.
    """
    changed = dict(layers)
    for name, edit in change.spec.layers.items():
        if name in layers:
            tuned = [tuning[name] for tuning in tunings if name in tuning]
            changed[name] = _edit(layers[name], edit, change, problems, tuned)
        elif name not in broken:
            place = Place(change.source.path, change.source.positions.line(("layers", name)))
            problems.append(Problem(f"unknown layer '{name}'", place, nearest(name, list(layers))))
    root = change.folder / "templates"
    for folder in sorted(path for path in (root.iterdir() if root.is_dir() else ()) if path.is_dir()):
        name, template = folder.name, folder / "Dockerfile.j2"
        if not is_file(template):
            problems.append(Problem("the folder holds no template", Place(folder), "call it Dockerfile.j2"))
        elif name in changed:
            changed[name] = replace(changed[name], templates=(template, *changed[name].templates))
        elif name not in broken:
            problems.append(
                Problem(f"a template for the unknown layer '{name}'", Place(template), nearest(name, list(changed)))
            )
    return changed


def _edit(
    layer: LayerDef, edit: LayerOverride, change: Override, problems: list[Problem], tuned: Sequence[LayerTuning]
) -> LayerDef:
    def at(*keys: str | int) -> Place:
        return Place(change.source.path, change.source.positions.line(("layers", layer.name, *keys)))

    def unknown(what: str, name: str, known: Iterable[str], *keys: str) -> None:
        message = f"the layer '{layer.name}' has no {what} '{name}'"
        problems.append(Problem(message, at(*keys, name), nearest(name, list(known))))

    spec = layer.spec
    check_vars(layer, edit.vars, change.source, ("layers", layer.name, "vars"), problems)
    for name, lists in edit.packages.items():
        if name not in spec.packages:
            unknown("package list", name, spec.packages, "packages")
        for index, package in enumerate(lists.append):
            if not re.fullmatch(get_args(PackageName)[1].pattern, package):
                message = f"'{package}' is not the name of a Debian package"
                problems.append(Problem(message, at("packages", name, "append", index), "write the name alone"))
    pip = dict(spec.pip)
    for name, lists in edit.requirements.items():
        of_channels = [tuning.pip[name].requirements for tuning in tuned if name in tuning.pip]
        if name not in pip and not of_channels:
            unknown(
                "requirement set", name, {*pip, *(given for tuning in tuned for given in tuning.pip)}, "requirements"
            )
            continue
        for index, requirement in enumerate(lists.append):
            if fault := requirement_fault(requirement):
                place = at("requirements", name, "append", index)
                problems.append(Problem(fault, place, "write it as name==version"))
        place_of = functools.partial(at, "requirements", name)
        own = pip[name].requirements if name in pip else []
        requirements = edit_list(own, lists, place_of, problems, also=[item for items in of_channels for item in items])
        if name not in pip:
            continue
        if not requirements:
            message = f"nothing is left in the requirement set '{name}'"
            problems.append(Problem(message, place_of(), "leave or append a requirement"))
        pip[name] = pip[name].model_copy(update={"requirements": requirements})
    return replace(
        layer,
        spec=spec.model_copy(update={"pip": pip}),
        patches=(*layer.patches, *_patches(layer, edit, change.folder, at, problems)),
        edit=Edit(edit, change.source),
    )


def _patches(
    layer: LayerDef, edit: LayerOverride, folder: Path, at: Callable[..., Place], problems: list[Problem]
) -> list[Path]:
    patches: list[Path] = []
    taken = {patch.name for series in (layer.patches, *layer.series.values()) for patch in series}
    for index, relative in enumerate(edit.patches):
        patch, place = folder / relative, at("patches", index)
        if layer.spec.patches is None:
            problems.append(Problem(f"the layer '{layer.name}' applies no patches", place, "remove it"))
        elif not is_file(patch):
            problems.append(Problem(f"the patch '{relative}' does not exist", place, f"add it below {folder}"))
        elif patch.name in taken | {other.name for other in patches}:
            problems.append(Problem(f"the layer '{layer.name}' has a patch '{patch.name}'", place, "rename yours"))
        patches.append(patch)
    return patches


_KINDS = {str: "a string", int: "a whole number", bool: "true or false", list: "a list"}


def check_vars(
    layer: LayerDef, values: Mapping[str, Value], source: Source, keys: tuple[str, ...], problems: list[Problem]
) -> None:
    """A variable can be replaced where layer.toml declares it, by a value of the same kind."""
    declared = layer.spec.vars
    for name, value in values.items():
        place = Place(source.path, source.positions.line((*keys, name)))
        if name not in declared:
            message = f"the layer '{layer.name}' has no variable '{name}'"
            problems.append(Problem(message, place, nearest(name, list(declared))))
        elif type(value) is not type(declared[name]):
            message = f"the variable '{name}' of '{layer.name}' is {_KINDS[type(declared[name])]}"
            problems.append(Problem(message, place, f"it cannot be {_KINDS[type(value)]} here"))


def edit_list(
    items: list[str],
    edit: ListEdit,
    place: Callable[..., Place],
    problems: list[Problem],
    also: Collection[str] = (),
) -> list[str]:
    """Remove, then append; removing what is not there is a fault, appending what is there is not.

    `place("remove", 0)` is where the first removal is written. `also`: what may be named although it is not there.
    """
    kept = list(items)
    for index, item in enumerate(edit.remove):
        if item in kept:
            kept.remove(item)
        elif item not in also:
            message = f"'{item}' is not in the list and cannot be removed"
            problems.append(Problem(message, place("remove", index), nearest(item, list({*kept, *also}))))
    return kept + [item for item in dict.fromkeys(edit.append) if item not in kept]


def edited(items: list[str], edit: ListEdit) -> list[str]:
    """The same where removals have been checked already."""
    return edit_list(items, edit, lambda *keys: Place(Path()), [])
