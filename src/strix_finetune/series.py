"""Patch series: the patches of a layer in their order, and the choice among several series by a variable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from strix_finetune import tomlfile
from strix_finetune.errors import DefinitionError, Place, Problem, nearest
from strix_finetune.model import Channel, LayerDef, Source
from strix_finetune.schema import LayerFile, Value

_VARIABLE = re.compile(r"\{([^{}/]*)\}")


def read_series(
    folder: Path, spec: LayerFile, source: Source, problems: list[Problem]
) -> tuple[tuple[Path, ...], Mapping[str, tuple[Path, ...]]]:
    """The patches of a layer's one series, or every series that its variable may choose: value → patches."""
    if spec.patches is None:
        return (), {}
    wanted = spec.patches.series
    place = Place(source.path, source.positions.line(("patches", "series")))
    variables = _VARIABLE.findall(wanted)
    if not variables:
        if tomlfile.is_file(folder / wanted):
            return _patches(folder / wanted, problems), {}
        message = f"the patch series '{wanted}' does not exist"
        problems.append(Problem(message, place, "write it: the names of the patches, one a line"))
        return (), {}
    name = variables[0]
    if len(variables) > 1 or not isinstance(spec.vars.get(name), str):
        message = f"'{wanted}' is chosen by one variable of the layer that is a string"
        strings = [name for name, value in spec.vars.items() if isinstance(value, str)]
        problems.append(Problem(message, place, nearest(name, strings)))
        return (), {}
    before, _, after = wanted.partition(f"{{{name}}}")
    found = {}
    for path in sorted(folder.glob(f"{before}*{after}")):
        value = path.relative_to(folder).as_posix().removeprefix(before).removesuffix(after)
        if tomlfile.is_file(path):
            found[value] = _patches(path, problems)
    if not found:
        problems.append(Problem(f"there is no patch series '{wanted}'", place, "write one for each value"))
    return (), found


def chosen(layer: LayerDef, values: Mapping[str, Value], channel: Channel) -> tuple[Path, ...]:
    """The patches that a layer applies with these variables, a user's last. Raises where no series is for them."""
    if not layer.series or layer.spec.patches is None:
        return layer.patches
    name = _VARIABLE.findall(layer.spec.patches.series)[0]
    value = str(values[name])
    if value not in layer.series:
        message = f"the layer '{layer.name}' has no patch series for {name} '{value}'"
        raise DefinitionError(Problem(message, _place(layer, name, channel), nearest(value, list(layer.series))))
    return (*layer.series[value], *layer.patches)


def _place(layer: LayerDef, name: str, channel: Channel) -> Place:
    """Where the variable got its value: in the user's override, the channel, or the layer."""
    keys = ("layers", layer.name, "vars", name)
    if layer.edit and name in layer.edit.spec.vars:
        return Place(layer.edit.source.path, layer.edit.source.positions.line(keys))
    tuning = channel.spec.layers.get(layer.name)
    if tuning and name in tuning.vars:
        return Place(channel.source.path, channel.source.positions.line(keys))
    return Place(layer.source.path, layer.source.positions.line(("vars", name)))


def _patches(series: Path, problems: list[Problem]) -> tuple[Path, ...]:
    patches: list[Path] = []
    for number, line in enumerate((tomlfile.read_text(series, problems) or "").splitlines(), 1):
        name = line.split("#")[0].strip()
        if not name:
            continue
        place = Place(series, number)
        if name.startswith("/") or ".." in name.split("/"):
            problems.append(
                Problem(f"the patch '{name}' lies outside of the layer", place, "copy it beside the series")
            )
            continue
        patch = series.parent / name
        if not tomlfile.is_file(patch):
            problems.append(
                Problem(f"the patch '{name}' does not exist", place, "add it, or remove its line from the series")
            )
        elif patch.name in {other.name for other in patches}:
            problems.append(Problem(f"a patch called '{patch.name}' is in the series twice", place, "remove one"))
        patches.append(patch)
    return tuple(patches)
