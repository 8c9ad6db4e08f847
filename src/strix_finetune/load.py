"""Read every definition at once and check how they fit together; all faults are reported in one go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from strix_finetune import tomlfile
from strix_finetune.errors import DefinitionError, Place, Problem, nearest
from strix_finetune.model import Channel, LayerDef, Project, Source, Target
from strix_finetune.override import Override, apply_override
from strix_finetune.schema import ChannelFile, LayerFile, OverrideFile, TargetsFile

# folders under images/ that hold no layer
NOT_LAYERS = ("channels", "locks", "__pycache__")


def load(images: Path, override: Path | None = None) -> Project:
    """Load `images/` and, on top of it, a user's override folder. Raises DefinitionError with every problem."""
    problems: list[Problem] = []
    layers = _layers(images, problems)
    change = _override(override, problems) if override else None
    if change:
        for name, layer in _layers(change.folder / "layers", problems, required=False).items():
            if name in layers:
                place = Place(layer.source.path, layer.source.positions.line(("name",)))
                problems.append(
                    Problem(f"the layer '{name}' exists already", place, "rename it, or change it in override.toml")
                )
            else:
                layers[name] = layer
        layers = apply_override(layers, change, problems)
    channels = _channels(images / "channels", problems)
    targets, default = _targets(images / "targets.toml", problems)
    _check_layers(layers, problems)
    _check_channels(channels, layers, targets, problems)
    if problems:
        raise DefinitionError(sorted(problems, key=lambda problem: str(problem.place or "")))
    return Project(layers, channels, targets, default, images / "macros.j2", override)


def _layers(root: Path, problems: list[Problem], *, required: bool = True) -> dict[str, LayerDef]:
    if not root.is_dir():
        if required:
            problems.append(Problem("there is no folder of layers", Place(root), "name it with --images"))
        return {}
    layers: dict[str, LayerDef] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        if folder.name in NOT_LAYERS or folder.name.startswith("."):
            continue
        read = tomlfile.read(folder / "layer.toml", LayerFile, problems)
        if read is None:
            continue
        spec, source = read
        if spec.name != folder.name:
            first = next((layer for layer in layers.values() if layer.name == spec.name), None)
            also = f", and {first.source.path} has that name too" if first else ""
            place = Place(source.path, source.positions.line(("name",)))
            problems.append(
                Problem(
                    f"the layer in folder '{folder.name}' calls itself '{spec.name}'{also}",
                    place,
                    "a layer bears its folder's name",
                )
            )
            continue
        layers[spec.name] = LayerDef(
            spec=spec,
            source=source,
            folder=folder,
            templates=(folder / "Dockerfile.j2",),
            patches=_patches(folder, spec, source, problems),
        )
    return layers


def _patches(folder: Path, spec: LayerFile, source: Source, problems: list[Problem]) -> tuple[Path, ...]:
    if spec.patches is None:
        return ()
    series = folder / spec.patches.series
    if not series.is_file():
        place = Place(source.path, source.positions.line(("patches", "series")))
        problems.append(Problem(f"the patch series '{spec.patches.series}' does not exist", place))
        return ()
    patches = []
    for number, line in enumerate(series.read_text("utf-8").splitlines(), 1):
        name = line.split("#")[0].strip()
        if not name:
            continue
        patch = series.parent / name
        if not patch.is_file():
            problems.append(Problem(f"the patch '{name}' does not exist", Place(series, number)))
        patches.append(patch)
    return tuple(patches)


def _override(folder: Path, problems: list[Problem]) -> Override | None:
    if not folder.is_dir():
        problems.append(Problem("the override folder does not exist", Place(folder), "name an existing folder"))
        return None
    if not (folder / "override.toml").exists():
        # a folder with only templates or layers needs no settings
        from strix_finetune.tomlpos import Positions

        return Override(folder, OverrideFile(), Source(folder / "override.toml", Positions("")))
    read = tomlfile.read(folder / "override.toml", OverrideFile, problems)
    return Override(folder, *read) if read else None


def _channels(root: Path, problems: list[Problem]) -> dict[str, Channel]:
    channels: dict[str, Channel] = {}
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


def _check_layers(layers: Mapping[str, LayerDef], problems: list[Problem]) -> None:
    for layer in layers.values():
        spec, source = layer.spec, layer.source

        def at(*keys: str | int, source: Source = source) -> Place:
            return Place(source.path, source.positions.line(keys))

        for key, names in (("parent", spec.parent), ("builders", spec.builders)):
            for index, name in enumerate(names):
                if name not in layers:
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
        if not layer.templates[-1].is_file():
            problems.append(
                Problem(f"the layer '{spec.name}' has no template", Place(layer.templates[-1]), "add a Dockerfile.j2")
            )
        for index, smoke in enumerate(spec.smoke):
            if not (layer.folder / smoke.file).is_file():
                problems.append(Problem(f"the smoke test '{smoke.file}' does not exist", at("smoke", index, "file")))
        for name, requirements in spec.pip.items():
            for index, requirement in enumerate(requirements.requirements):
                fault = requirement_fault(requirement)
                if fault:
                    problems.append(Problem(fault, at("pip", name, "requirements", index)))
    _check_cycles(layers, problems)


def requirement_fault(text: str) -> str:
    """What is wrong with a Python requirement, or an empty string."""
    from packaging.requirements import InvalidRequirement, Requirement

    if text.rstrip().endswith(("=", "<", ">", "~", "!")):
        return f"the requirement '{text}' names no version"
    try:
        Requirement(text)
    except InvalidRequirement as error:
        return f"'{text}' is not a Python requirement ({str(error).splitlines()[0]})"
    return ""


def _check_cycles(layers: Mapping[str, LayerDef], problems: list[Problem]) -> None:
    """Follow all parent candidates and builders: a cycle that one target happens to avoid is still a fault."""
    state: dict[str, int] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if state.get(name) == 2:
            return
        if state.get(name) == 1:
            ring = (*trail[trail.index(name) :], name)
            layer = layers[ring[-2]]
            key = "parent" if name in layer.spec.parent else "builders"
            problems.append(
                Problem(
                    f"the layers form a cycle: {' → '.join(ring)}",
                    Place(layer.source.path, layer.source.positions.line((key,))),
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
) -> None:
    for channel in channels.values():
        spec, source = channel.spec, channel.source
        known = (("omit", spec.omit, layers), ("layers", list(spec.layers), layers), ("targets", spec.targets, targets))
        for key, names, where in known:
            for index, name in enumerate(names):
                if name not in where:
                    place = Place(source.path, source.positions.line((key, name if key == "layers" else index)))
                    kind = "target" if key == "targets" else "layer"
                    problems.append(Problem(f"unknown {kind} '{name}'", place, nearest(name, list(where))))
        if spec.bootstrap.source == "image" and not spec.bootstrap.image:
            place = Place(source.path, source.positions.line(("bootstrap",)))
            problems.append(Problem("bootstrap from an image needs 'image'", place, "name it as host/name:tag"))
