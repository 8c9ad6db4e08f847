"""images: what there is, how large each layer is, and how large it may be."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strix_finetune.cli.options import engine_option, json_option
from strix_finetune.sizes import mb

if TYPE_CHECKING:
    from strix_finetune.inventory import Row


@click.command()
@engine_option()
@click.option("--compressed", is_flag=True, help="Also compress each image as a registry would (reads all of it).")
@click.option("--budget", is_flag=True, help="Hold each layer's newest image against its budget; exit 1 if over.")
@click.option(
    "--why-size",
    is_flag=False,
    flag_value="*",
    metavar="[IMAGE]",
    help="What makes IMAGE (a target or a name) large: by layer, and in it by package or folder.",
)
@click.option(
    "--treemap", type=click.Path(path_type=Path), metavar="FILE", help="With --why-size: also a picture, SVG."
)
@click.option("--override", type=click.Path(path_type=Path), help="Folder with your changes, for --budget.")
@click.option("--images", "definitions", type=click.Path(path_type=Path), help="Folder of definitions, for --budget.")
@json_option
def images(
    engine: str,
    compressed: bool,
    budget: bool,
    why_size: str | None,
    treemap: Path | None,
    override: Path | None,
    definitions: Path | None,
    as_json: bool,
) -> int:
    """List the images of this project: the whole size, and what each layer adds to its parent."""
    from strix_finetune.engine.select import connect
    from strix_finetune.inventory import inventory

    if treemap and why_size is None:
        from strix_finetune.errors import InputError

        raise InputError("--treemap draws what --why-size finds", cure="give both")
    if why_size is not None:
        from strix_finetune.cli.whysize import show

        return show(engine, why_size, treemap, as_json=as_json)
    allowed = _budgets(definitions, override) if budget else None
    connection = connect(engine, os.environ)  # type: ignore[arg-type]
    try:
        rows = inventory(connection, compressed=compressed)
    finally:
        connection.close()
    if allowed:
        rows = [row for row in rows if row.current]
    limits = [allowed(row) if allowed else None for row in rows]
    if as_json:
        made = [row.as_json() | ({"budget": limit} if allowed else {}) for row, limit in zip(rows, limits, strict=True)]
        click.echo(json.dumps({"images": made}, indent=1))
    elif not rows:
        click.echo("there is no image yet: run 'strix-finetune build'")
    else:
        _table(rows, limits, compressed=compressed, budget=budget)
    over = [
        (row, limit) for row, limit in zip(rows, limits, strict=True) if limit is not None and (row.adds or 0) > limit
    ]
    sys.stdout.flush()
    for row, limit in over:
        words = f"{row.layer} of {row.target} on {row.channel} adds {_mb(row.adds)} and may add {_mb(limit)}"
        print(f"error: {words}; build it smaller, or raise its budget_mb", file=sys.stderr)
    return 1 if over else 0


def _budgets(definitions: Path | None, override: Path | None) -> Callable[[Row], int | None]:
    """How many bytes the layer of a row may add, by the definitions; None where they do not say."""
    from functools import cache

    from strix_finetune import budget, graph
    from strix_finetune.errors import InputError
    from strix_finetune.load import load
    from strix_finetune.model import Stack
    from strix_finetune.paths import find

    project = load(definitions or find().images, override)

    @cache
    def stack(target: str, channel: str) -> Stack | None:
        try:
            return graph.stack(project, target, channel)
        except InputError:
            # an image of a target or channel that these definitions do not have
            return None

    def allowed(row: Row) -> int | None:
        found = stack(row.target, row.channel)
        node = next((node for node in found.nodes if node.name == row.layer), None) if found else None
        limit = budget.of(node, found.channel) if node and found else None
        return limit.size if limit else None

    return allowed


def _table(rows: Sequence[Row], limits: Sequence[int | None], *, compressed: bool, budget: bool) -> None:
    heads = ["IMAGE", "KEY", "SIZE", "ADDS", *["BUDGET"] * budget, *["COMPRESSED"] * compressed]
    cells = [
        [row.name, row.key[:12], _mb(row.size), _mb(row.adds)]
        + ["none" if limit is None else _mb(limit)] * budget
        + [_mb(row.compressed)] * compressed
        for row, limit in zip(rows, limits, strict=True)
    ]
    widths = [max(len(line[column]) for line in [heads, *cells]) for column in range(len(heads))]
    for line in [heads, *cells]:
        # names to the left, numbers to the right; never cut, whatever the terminal's width
        left = [text.ljust(width) for text, width in zip(line[:2], widths[:2], strict=True)]
        right = [text.rjust(width) for text, width in zip(line[2:], widths[2:], strict=True)]
        click.echo("  ".join([*left, *right]))
    for notice in sorted({row.notice for row in rows if row.notice}):
        click.echo(f"note: {notice}")


def _mb(size: int | None) -> str:
    return "?" if size is None else mb(size)
