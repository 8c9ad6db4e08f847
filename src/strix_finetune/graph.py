"""Narrow the declared graph to one target and channel: pure."""

from __future__ import annotations

from strix_finetune.errors import DefinitionError, InputError, Place, Problem, nearest
from strix_finetune.model import Channel, LayerDef, Node, Project, Stack, Target
from strix_finetune.override import edit_list, edited
from strix_finetune.schema import LayerTuning, PipSet
from strix_finetune.series import chosen as chosen_patches


def find_target(project: Project, name: str) -> Target:
    if name not in project.targets:
        raise InputError(f"unknown target '{name}'", cure=nearest(name, list(project.targets)))
    target = project.targets[name]
    if target.spec.excluded:
        raise InputError(f"the target {name} is excluded: {target.spec.excluded}", cure="choose another --target")
    return target


def find_channel(project: Project, name: str) -> Channel:
    if name not in project.channels:
        raise InputError(f"unknown channel '{name}'", cure=nearest(name, list(project.channels)))
    return project.channels[name]


def stack(project: Project, target_name: str, channel_name: str) -> Stack:
    """The layers that `target` has on `channel`, parents before children. Raises when they do not make a stack."""
    target = find_target(project, target_name)
    channel = find_channel(project, channel_name)
    if channel.spec.targets and target.id not in channel.spec.targets:
        raise InputError(
            f"the channel {channel.name} does not serve {target.id}",
            cure=f"it serves {', '.join(channel.spec.targets)}",
        )
    absent = {name: reason for name, layer in project.layers.items() if (reason := lacks(layer, target, channel))}
    present = {name: layer for name, layer in project.layers.items() if name not in absent}
    nodes: dict[str, Node] = {}

    def visit(name: str) -> None:
        if name in nodes:
            return
        node = _node(present[name], present, channel)
        for other in node.needs:
            if other not in present:
                raise DefinitionError(
                    Problem(
                        f"'{name}' needs the builder '{other}', which {target.id} on {channel.name} does not have",
                        Place(node.layer.source.path, node.layer.source.positions.line(("builders",))),
                        f"omit '{name}' as well, or keep '{other}'",
                    )
                )
            visit(other)
        nodes[name] = node

    for name in present:
        visit(name)
    finals = [node for node in nodes.values() if node.layer.spec.final]
    if len(finals) != 1:
        names = ", ".join(node.name for node in finals) or "none"
        second = finals[1].layer.source if finals else None
        place = Place(second.path, second.positions.line(("final",))) if second else Place(channel.source.path)
        message = f"the stack of {target.id} on {channel.name} needs exactly one final layer and has {names}"
        raise DefinitionError(Problem(message, place, "set final = true in one layer.toml"))
    return Stack(target, channel, tuple(nodes.values()), absent)


def wanted(chosen: Stack, names: tuple[str, ...]) -> tuple[str, ...]:
    """The layers that were asked for: the named ones, else the final one. Raises InputError for an unknown name."""
    known = [node.name for node in chosen.nodes]
    for name in names:
        if name in chosen.absent:
            raise InputError(
                f"there is no layer '{name}' for {chosen.target.id} on {chosen.channel.name}: {chosen.absent[name]}",
                cure=f"the stack has {', '.join(known)}",
            )
        if name not in known:
            raise InputError(
                f"there is no layer '{name}' for {chosen.target.id} on {chosen.channel.name}", cure=nearest(name, known)
            )
    return names or (chosen.final.name,)


def lacks(layer: LayerDef, target: Target, channel: Channel) -> str:
    """Why a layer is not in the stack of a target on a channel; empty when it is."""
    spec = layer.spec
    if spec.name in channel.spec.omit:
        return f"the channel {channel.name} omits it"
    if spec.serves not in ("any", target.spec.kind):
        return f"it serves {spec.serves} targets only"
    return target.spec.missing.get(spec.needs_part, "") if spec.needs_part else ""


def _node(layer: LayerDef, present: dict[str, LayerDef], channel: Channel) -> Node:
    spec = layer.spec
    tuning = channel.spec.layers.get(spec.name)
    parent = next((name for name in spec.parent if name in present), None)
    if spec.parent and parent is None:
        raise DefinitionError(
            Problem(
                f"none of the parents of '{spec.name}' exists on the channel {channel.name}",
                Place(layer.source.path, layer.source.positions.line(("parent",))),
                "add one that does, or omit the layer",
            )
        )
    values = {**spec.vars, **(tuning.vars if tuning else {})}
    packages = {**spec.packages, **(tuning.packages if tuning else {})}
    if layer.edit:
        values |= layer.edit.spec.vars
        packages |= _edited_packages(layer, packages)
    return Node(
        layer=layer,
        parent=parent,
        builders=tuple(spec.builders),
        vars=values,
        packages={name: tuple(items) for name, items in packages.items()},
        archives={**spec.archives, **(tuning.archives if tuning else {})},
        patches=chosen_patches(layer, values, channel),
        pip={**spec.pip, **(_tuned_pip(layer, tuning) if tuning else {})},
        wheels={**spec.wheels, **(tuning.wheels if tuning else {})},
    )


def _tuned_pip(layer: LayerDef, tuning: LayerTuning) -> dict[str, PipSet]:
    """The channel's sets with the user's edits; what cannot be removed was told when the definitions were loaded."""
    if layer.edit is None:
        return dict(tuning.pip)
    sets: dict[str, PipSet] = {}
    for name, asked in tuning.pip.items():
        edit = layer.edit.spec.requirements.get(name)
        left = edited(asked.requirements, edit) if edit else asked.requirements
        if not left:
            source = layer.edit.source
            place = Place(source.path, source.positions.line(("layers", layer.name, "requirements", name)))
            message = f"nothing is left in the requirement set '{name}'"
            raise DefinitionError(Problem(message, place, "leave or append a requirement"))
        sets[name] = asked.model_copy(update={"requirements": left})
    return sets


def _edited_packages(layer: LayerDef, packages: dict[str, list[str]]) -> dict[str, list[str]]:
    assert layer.edit is not None
    problems: list[Problem] = []
    source = layer.edit.source
    edited = {}
    for name, lists in layer.edit.spec.packages.items():

        def at(*keys: str | int, name: str = name) -> Place:
            return Place(source.path, source.positions.line(("layers", layer.name, "packages", name, *keys)))

        edited[name] = edit_list(packages.get(name, []), lists, at, problems)
    if problems:
        raise DefinitionError(problems)
    return edited
