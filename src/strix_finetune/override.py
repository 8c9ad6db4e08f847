"""A user's changes without a fork: variables, package lists, requirements, patches, templates, layers.

Precedence: what layer.toml says, then the channel's tuning of it, then the user. So variables and package lists are
only checked here and merged when a stack is made (graph.py), after the channel has had its say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from strix_finetune.errors import Place, Problem, nearest
from strix_finetune.model import Edit, LayerDef, Source
from strix_finetune.schema import LayerOverride, ListEdit, OverrideFile


@dataclass(frozen=True, slots=True)
class Override:
    """`folder` as given by --override, and what its override.toml says."""

    folder: Path
    spec: OverrideFile
    source: Source


def apply_override(layers: Mapping[str, LayerDef], change: Override, problems: list[Problem]) -> dict[str, LayerDef]:
    """Return the layers with the user's changes in them; faults are appended to `problems`."""
    changed = dict(layers)
    for name, edit in change.spec.layers.items():
        if name not in layers:
            place = Place(change.source.path, change.source.positions.line(("layers", name)))
            problems.append(Problem(f"unknown layer '{name}'", place, nearest(name, list(layers))))
            continue
        changed[name] = _edit(layers[name], edit, change, problems)
    for template in sorted((change.folder / "templates").glob("*/Dockerfile.j2")):
        name = template.parent.name
        if name not in changed:
            problems.append(
                Problem(f"a template for the unknown layer '{name}'", Place(template), nearest(name, list(changed)))
            )
            continue
        changed[name] = replace(changed[name], templates=(template, *changed[name].templates))
    return changed


def _edit(layer: LayerDef, edit: LayerOverride, change: Override, problems: list[Problem]) -> LayerDef:
    def at(*keys: str) -> Place:
        return Place(change.source.path, change.source.positions.line(("layers", layer.name, *keys)))

    spec = layer.spec
    for kind, noun, edits, known in (
        ("vars", "variable", edit.vars, spec.vars),
        ("packages", "package list", edit.packages, spec.packages),
        ("requirements", "requirement set", edit.requirements, spec.pip),
    ):
        problems.extend(
            Problem(f"the layer '{layer.name}' has no {noun} '{name}'", at(kind, name), nearest(name, list(known)))
            for name in edits
            if name not in known
        )
    pip = dict(spec.pip)
    for name, lists in edit.requirements.items():
        if name not in pip:
            continue
        requirements = edit_list(pip[name].requirements, lists, at("requirements", name), problems)
        pip[name] = pip[name].model_copy(update={"requirements": requirements})
    patches = [change.folder / relative for relative in edit.patches]
    problems.extend(
        Problem(f"the patch '{patch.relative_to(change.folder)}' does not exist", at("patches"))
        for patch in patches
        if not patch.is_file()
    )
    return replace(
        layer,
        spec=spec.model_copy(update={"pip": pip}),
        patches=(*layer.patches, *patches),
        edit=Edit(edit, change.source),
    )


def edit_list(items: list[str], edit: ListEdit, place: Place, problems: list[Problem]) -> list[str]:
    """Remove, then append; removing what is not there is a fault, appending what is there is not."""
    kept = list(items)
    for item in edit.remove:
        if item in kept:
            kept.remove(item)
        else:
            problems.append(Problem(f"'{item}' is not in the list and cannot be removed", place, nearest(item, kept)))
    return kept + [item for item in edit.append if item not in kept]
