"""Read every definition at once and check how they fit together; all faults are reported in one go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from strix_finetune import knownbad, tomlfile
from strix_finetune.errors import DefinitionError, Place, Problem, nearest
from strix_finetune.model import Channel, LayerDef, Project, Source, Target
from strix_finetune.override import Override, apply_override, check_vars
from strix_finetune.pep508 import range_fault
from strix_finetune.schema import ChannelFile, LayerFile, OverrideFile, TargetsFile
from strix_finetune.series import read_series
from strix_finetune.sets import check_channel_sets, check_layer_sets

# folders under images/ that hold no layer
NOT_LAYERS = ("channels", "locks", "profiles", "__pycache__")


def load(images: Path, override: Path | None = None) -> Project:
    """Load `images/` and, on top of it, a user's override folder. Raises DefinitionError with every problem."""
    problems: list[Problem] = []
    broken: set[str] = set()
    layers = _layers(images, problems, broken)
    channels = _channels(images / "channels", problems)
    indexes = {name for channel in channels.values() for name in channel.spec.indexes}
    _check_requirements(layers, indexes, problems)
    change = _override(override, problems) if override else None
    if change:
        added = _layers(change.folder / "layers", problems, broken, required=False)
        _check_requirements(added, indexes, problems)
        for name, layer in added.items():
            if name in layers:
                place = Place(layer.source.path, layer.source.positions.line(("name",)))
                problems.append(
                    Problem(f"the layer '{name}' exists already", place, "rename it, or change it in override.toml")
                )
            else:
                layers[name] = layer
        tunings = [channel.spec.layers for channel in channels.values()]
        layers = apply_override(layers, change, problems, broken, tunings)
    targets, default = _targets(images / "targets.toml", problems)
    _check_layers(layers, problems, broken)
    _check_channels(channels, layers, targets, problems, broken)
    known_bad = knownbad.read(images, problems)
    if problems:
        raise DefinitionError(sorted(problems, key=_order))
    return Project(layers, channels, targets, default, images / "macros.j2", override, known_bad)


def _order(problem: Problem) -> tuple[str, int]:
    return (str(problem.place.path), problem.place.line or 0) if problem.place else ("", 0)


def _layers(root: Path, problems: list[Problem], broken: set[str], *, required: bool = True) -> dict[str, LayerDef]:
    """The layers below `root`. The names of those that cannot be read go into `broken`: a link to one of them is
    no second fault."""
    if not root.is_dir():
        if required:
            problems.append(Problem("there is no folder of layers", Place(root), "name it with --images"))
        return {}
    layers: dict[str, LayerDef] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        if folder.name in NOT_LAYERS or folder.name.startswith("."):
            continue
        if not (folder / "layer.toml").exists():
            broken.add(folder.name)
            problems.append(Problem("the folder has no layer.toml", Place(folder), "add one, or remove the folder"))
            continue
        read = tomlfile.read(folder / "layer.toml", LayerFile, problems)
        if read is None:
            broken.add(folder.name)
            continue
        spec, source = read
        if spec.name != folder.name:
            broken.add(folder.name)
            other = root / spec.name / "layer.toml"
            also = f", and {other} has that name too" if other.exists() else ""
            place = Place(source.path, source.positions.line(("name",)))
            problems.append(
                Problem(
                    f"the layer in folder '{folder.name}' calls itself '{spec.name}'{also}",
                    place,
                    "a layer bears its folder's name",
                )
            )
            continue
        patches, series = read_series(folder, spec, source, problems)
        layers[spec.name] = LayerDef(
            spec=spec,
            source=source,
            folder=folder,
            templates=(folder / "Dockerfile.j2",),
            patches=patches,
            series=series,
        )
    return layers


def _override(folder: Path, problems: list[Problem]) -> Override | None:
    if not folder.is_dir():
        problems.append(Problem("the override folder does not exist", Place(folder), "name an existing folder"))
        return None
    if not (folder / "override.toml").exists():
        # a folder with only templates or layers needs no settings
        if not any((folder / name).is_dir() for name in ("templates", "layers")):
            message = "the override folder holds none of override.toml, templates/ and layers/"
            problems.append(Problem(message, Place(folder), "is it the right folder?"))
            return None
        from strix_finetune.tomlpos import Positions

        return Override(folder, OverrideFile(), Source(folder / "override.toml", Positions("")))
    read = tomlfile.read(folder / "override.toml", OverrideFile, problems)
    return Override(folder, *read) if read else None


def _channels(root: Path, problems: list[Problem]) -> dict[str, Channel]:
    channels: dict[str, Channel] = {}
    if not any(root.glob("*.toml")):
        problems.append(Problem("there is no channel", Place(root), "add one as <name>.toml"))
    for path in sorted(root.glob("*.toml")):
        read = tomlfile.read(path, ChannelFile, problems)
        if read is None:
            continue
        spec, source = read
        if spec.name != path.stem:
            place = Place(path, source.positions.line(("name",)))
            problems.append(
                Problem(
                    f"the channel in '{path.name}' calls itself '{spec.name}'", place, "a channel bears its file's name"
                )
            )
            continue
        channels[spec.name] = Channel(spec, source)
    return channels


def _targets(path: Path, problems: list[Problem]) -> tuple[dict[str, Target], str]:
    read = tomlfile.read(path, TargetsFile, problems)
    if read is None:
        return {}, ""
    spec, source = read
    if spec.default not in spec.target:
        place = Place(path, source.positions.line(("default",)))
        problems.append(
            Problem(
                f"the default target '{spec.default}' is not defined", place, nearest(spec.default, list(spec.target))
            )
        )
    return {name: Target(name, entry) for name, entry in spec.target.items()}, spec.default


def _check_layers(layers: Mapping[str, LayerDef], problems: list[Problem], broken: set[str]) -> None:
    for layer in layers.values():
        spec, source = layer.spec, layer.source

        def at(*keys: str | int, source: Source = source) -> Place:
            return Place(source.path, source.positions.line(keys))

        for key, names in (("parent", spec.parent), ("builders", spec.builders)):
            for index, name in enumerate(names):
                if name not in layers and name not in broken:
                    problems.append(
                        Problem(
                            f"unknown layer '{name}' in '{key}' of '{spec.name}'",
                            at(key, index),
                            nearest(name, list(layers)),
                        )
                    )
        for index, name in enumerate(spec.parent):
            if name in layers and layers[name].spec.role == "builder" and spec.role != "builder":
                problems.append(
                    Problem(
                        f"'{name}' is a builder and cannot be the parent of the image '{spec.name}'",
                        at("parent", index),
                        "list it in 'builders'",
                    )
                )
        if not tomlfile.is_file(layer.templates[-1]):
            problems.append(
                Problem(f"the layer '{spec.name}' has no template", Place(layer.templates[-1]), "add a Dockerfile.j2")
            )
        for index, smoke in enumerate(spec.smoke):
            if not tomlfile.is_file(layer.folder / smoke.file):
                message = f"the smoke test '{smoke.file}' does not exist"
                problems.append(Problem(message, at("smoke", index, "file"), f"add it below {layer.folder}"))
    _check_cycles(layers, problems)


def _check_requirements(layers: Mapping[str, LayerDef], indexes: set[str], problems: list[Problem]) -> None:
    """Before a user's changes are in the lists: those have lines of their own."""
    for layer in layers.values():
        check_layer_sets(layer, indexes, problems)
        line = layer.source.positions.line
        for name, text in layer.spec.ceilings.items():
            if fault := range_fault(text):
                place = Place(layer.source.path, line(("ceilings", name)))
                problems.append(Problem(f"ceiling of '{name}': {fault}", place, "write it as <2.15"))


def _check_cycles(layers: Mapping[str, LayerDef], problems: list[Problem]) -> None:
    """Follow all parent candidates and builders: a cycle that one target happens to avoid is still a fault."""
    state: dict[str, int] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if state.get(name) == 2:
            return
        if state.get(name) == 1:
            ring = (*trail[trail.index(name) :], name)
            layer = layers[ring[-2]]
            key, links = (
                ("parent", layer.spec.parent) if name in layer.spec.parent else ("builders", layer.spec.builders)
            )
            problems.append(
                Problem(
                    f"the layers form a cycle: {' → '.join(ring)}",
                    Place(layer.source.path, layer.source.positions.line((key, links.index(name)))),
                    "remove one of these links",
                )
            )
            return
        state[name] = 1
        for other in (*layers[name].spec.parent, *layers[name].spec.builders):
            if other in layers:
                visit(other, (*trail, name))
        state[name] = 2

    for name in layers:
        visit(name, ())


def _check_channels(
    channels: Mapping[str, Channel],
    layers: Mapping[str, LayerDef],
    targets: Mapping[str, Target],
    problems: list[Problem],
    broken: set[str],
) -> None:
    for channel in channels.values():
        spec, source = channel.spec, channel.source
        known = (("omit", spec.omit, layers), ("layers", list(spec.layers), layers), ("targets", spec.targets, targets))
        for key, names, where in known:
            for index, name in enumerate(names):
                if name not in where and (where is not layers or name not in broken):
                    place = Place(source.path, source.positions.line((key, name if key == "layers" else index)))
                    kind = "target" if key == "targets" else "layer"
                    problems.append(Problem(f"unknown {kind} '{name}'", place, nearest(name, list(where))))
        for name, tuning in spec.layers.items():
            if name not in layers:
                continue
            declared = layers[name]
            check_vars(declared, tuning.vars, source, ("layers", name, "vars"), problems)
            for group in tuning.packages:
                if group not in declared.spec.packages:
                    place = Place(source.path, source.positions.line(("layers", name, "packages", group)))
                    message = f"the layer '{name}' has no package list '{group}'"
                    problems.append(Problem(message, place, nearest(group, list(declared.spec.packages))))
        check_channel_sets(channel, layers, targets, problems)
        if spec.bootstrap.source == "image" and not spec.bootstrap.image:
            place = Place(source.path, source.positions.line(("bootstrap",)))
            problems.append(Problem("bootstrap from an image needs 'image'", place, "name it as host/name:tag"))
