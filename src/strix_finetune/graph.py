"""Narrow the declared graph to one target and channel: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
    """The layers that `target` has on `channel`, parents before children.

    Raises when they do not make a stack, with every reason at once.
    """
    target, channel = _found(project, target_name, channel_name)
    if channel.spec.targets and target.id not in channel.spec.targets:
        raise InputError(
            f"the channel {channel.name} does not serve {target.id}",
            cure=f"it serves {', '.join(channel.spec.targets)}",
        )
    absent = {name: reason for name, layer in project.layers.items() if (reason := lacks(layer, target, channel))}
    present = {name: layer for name, layer in project.layers.items() if name not in absent}
    made: dict[str, Node] = {}
    problems: list[Problem] = []
    for name, layer in present.items():
        try:
            made[name] = _node(layer, present, channel)
        except DefinitionError as error:
            problems += error.problems
    problems += [problem for node in made.values() for problem in _missing_builders(node, present, target, channel)]
    finals = [layer for layer in present.values() if layer.spec.final]
    if len(finals) != 1:
        names = ", ".join(layer.name for layer in finals) or "none"
        second = finals[1].source if finals else None
        place = Place(second.path, second.positions.line(("final",))) if second else Place(channel.source.path)
        message = f"the stack of {target.id} on {channel.name} needs exactly one final layer and has {names}"
        problems.append(Problem(message, place, "set final = true in one layer.toml"))
    if problems:
        raise DefinitionError(problems)
    nodes: dict[str, Node] = {}

    def visit(name: str) -> None:
        if name not in nodes:
            for other in made[name].needs:
                visit(other)
            nodes[name] = made[name]

    for name in made:
        visit(name)
    return Stack(target, channel, tuple(nodes.values()), absent, project.known_bad)


def _found(project: Project, target_name: str, channel_name: str) -> tuple[Target, Channel]:
    """Both, or one error that names what is wrong with either."""
    problems: list[Problem] = []
    target = channel = None
    try:
        target = find_target(project, target_name)
    except InputError as error:
        problems += error.problems
    try:
        channel = find_channel(project, channel_name)
    except InputError as error:
        problems += error.problems
    if target is None or channel is None:
        raise InputError(problems)
    return target, channel


def _missing_builders(
    node: Node, present: Mapping[str, LayerDef], target: Target, channel: Channel
) -> Iterator[Problem]:
    place = Place(node.layer.source.path, node.layer.source.positions.line(("builders",)))
    for other in node.builders:
        if other not in present:
            message = f"'{node.name}' needs the builder '{other}', which {target.id} on {channel.name} does not have"
            yield Problem(message, place, f"omit '{node.name}' as well, or keep '{other}'")


def wanted(chosen: Stack, names: tuple[str, ...]) -> tuple[str, ...]:
    """The layers that were asked for: the named ones, else the final one. Raises InputError for an unknown name."""
    known = [node.name for node in chosen.nodes]
    problems = []
    for name in names:
        lacking = f"there is no layer '{name}' for {chosen.target.id} on {chosen.channel.name}"
        if name in chosen.absent:
            problems.append(Problem(f"{lacking}: {chosen.absent[name]}", cure=f"the stack has {', '.join(known)}"))
        elif name not in known:
            problems.append(Problem(lacking, cure=nearest(name, known)))
    if problems:
        raise InputError(problems)
    return names or (chosen.final.name,)


def lacks(layer: LayerDef, target: Target, channel: Channel) -> str:
    """Why a layer is not in the stack of a target on a channel; empty when it is."""
    spec = layer.spec
    if spec.name in channel.spec.omit:
        return f"the channel {channel.name} omits it"
    if spec.serves not in ("any", target.spec.kind):
        return f"it serves {spec.serves} targets only"
    tuned = channel.spec.layers[spec.name].wheels if spec.name in channel.spec.layers else {}
    for name, asked in spec.wheels.items():
        if name not in tuned and asked.index not in channel.spec.indexes:
            return f"the channel {channel.name} has no index '{asked.index}'"
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
