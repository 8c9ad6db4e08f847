"""images --why-size: a table of what makes an image large, and a picture of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strix_finetune.sizes import mb

if TYPE_CHECKING:
    from strix_finetune.engine.base import Engine
    from strix_finetune.oci.weights import Weights

_SHOWN = 12


def show(engine: str, name: str, treemap: Path | None, *, as_json: bool) -> int:
    """`name`: a target, the name of an image, or "*" for the only final image there is."""
    from strix_finetune.engine.select import connect
    from strix_finetune.oci.weights import weigh

    connection = connect(engine, os.environ)  # type: ignore[arg-type]
    try:
        weights = weigh(connection, _chosen(connection, name))
    finally:
        connection.close()
    if treemap:
        _draw(weights, treemap)
    if as_json:
        click.echo(json.dumps(weights.as_json(), indent=1))
    else:
        _table(weights)
    return 0


def _chosen(engine: Engine, name: str) -> str:
    from strix_finetune import names
    from strix_finetune.errors import InputError

    if name != "*":
        candidates = (name, names.final_ref(name)) if "/" not in name and ":" not in name else (name,)
        for ref in candidates:
            if engine.image(ref) is not None:
                return ref
        raise InputError(f"there is no image {name} here", cure="see 'strix-finetune images'")
    finals = sorted(
        tag for image in engine.images(names.KEY) for tag in image.tags if tag.startswith(f"{names.PREFIX}:")
    )
    if not finals:
        raise InputError("there is no final image yet", cure="run 'strix-finetune build', or name an image")
    if len(finals) > 1:
        raise InputError(f"there are {', '.join(finals)}", cure="name one of them after --why-size")
    return finals[0]


def _table(weights: Weights) -> None:
    click.echo(f"{weights.image}: {mb(weights.size)} unpacked")
    for layer in weights.layers:
        hidden = f", and {mb(layer.hidden)} that its own steps removed again" if layer.hidden else ""
        click.echo(f"\n{layer.layer}: {mb(layer.size)}{hidden}")
        for row in layer.weights[:_SHOWN]:
            share = 100 * row.size / weights.size
            click.echo(f"  {mb(row.size):>12}  {share:4.1f} %  {row.files:>6} files  {row.name}")
        if rest := layer.weights[_SHOWN:]:
            size, files = sum(row.size for row in rest), sum(row.files for row in rest)
            share = 100 * size / weights.size
            click.echo(f"  {mb(size):>12}  {share:4.1f} %  {files:>6} files  {len(rest)} more")


def _draw(weights: Weights, path: Path) -> None:
    from strix_finetune import leftovers
    from strix_finetune.errors import InputError
    from strix_finetune.oci.treemap import svg

    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent}", cure="make it first")
    leftovers.write(path, svg(weights))
    click.echo(f"wrote {path}", err=True)
