"""doctor: look at the host and say what would keep the images from running well."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strix_finetune.cli.options import engine_option, json_option

if TYPE_CHECKING:
    from strix_finetune.doctor.edges import Live


@click.command()
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/"),
    metavar="DIR",
    help="Look at the files of another machine, copied into DIR. Default: this machine.",
)
@click.option("--target", "-t", default="", metavar="GFX", help="GPU target that is meant. Default: the first found.")
@click.option("--channel", "-c", default="", metavar="NAME", help="Channel, for its size and its addresses.")
@engine_option("Container engine that is meant.")
@click.option("--images", type=click.Path(path_type=Path), help="Folder of layer definitions.")
@click.option("--offline", is_flag=True, help="Ask no address of the network.")
@click.option("--fix", is_flag=True, help="Print the commands that would put things right, and run none of them.")
@click.option("--verbose", "-v", is_flag=True, help="Say for every finding what was read.")
@json_option
def doctor(
    root: Path,
    target: str,
    channel: str,
    engine: str,
    images: Path | None,
    offline: bool,
    fix: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Check this host: GPU and rights, kernel and firmware, memory, engine, disk, network. Changes nothing.

    The exit code is 1 when something keeps the images from running.
    """
    from strix_finetune.doctor import show
    from strix_finetune.doctor.host import REAL, Host
    from strix_finetune.doctor.registry import examine
    from strix_finetune.paths import find

    folder = images or find().images
    targets = _targets(folder)
    _check("target", target, list(targets))
    _check("channel", channel, [path.stem for path in (folder / "channels").glob("*.toml")])
    if root.resolve() == REAL:
        edges = _edges(folder, target, channel, engine, offline)
        host = Host(REAL, env=os.environ, edges=edges, targets=targets, wanted=target)
    else:
        host = Host(root.absolute(), targets=targets, wanted=target)
    report = examine(host)
    if as_json:
        click.echo(json.dumps(show.as_json(report), indent=1, ensure_ascii=False))
    elif fix:
        click.echo(show.fixes(report))
    else:
        click.echo(show.text(report, verbose=verbose))
    return int(report.blocked)


def _check(what: str, name: str, known: list[str]) -> None:
    from strix_finetune.errors import InputError, nearest

    if name and name not in known:
        raise InputError(f"there is no {what} '{name}'", cure=nearest(name, known))


def _targets(images: Path) -> Mapping[str, Mapping[str, object]]:
    """The table of targets, unchecked: `targets` and every build say what is wrong with it."""
    try:
        found = tomllib.loads((images / "targets.toml").read_text("utf-8")).get("target", {})
    except (OSError, ValueError):
        return {}
    return {name: entry for name, entry in found.items() if isinstance(entry, dict)}


def _edges(images: Path, target: str, channel: str, engine: str, offline: bool) -> Live:
    from strix_finetune.doctor.edges import Live
    from strix_finetune.doctor.wants import Wants

    wants = Wants(images, target, channel, os.environ)
    return Live(
        os.environ,
        wanted=engine,  # type: ignore[arg-type]
        budget=wants.budget,
        addresses=None if offline else wants.addresses,
        ask=wants.ask,
        toolbox=wants.toolbox,
    )
