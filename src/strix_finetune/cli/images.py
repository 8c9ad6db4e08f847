"""images: what there is, and how large each layer is."""

from __future__ import annotations

import json
import os

import click

from strix_finetune.cli.options import json_option


@click.command()
@click.option("--engine", type=click.Choice(["auto", "docker", "podman"]), default="auto", show_default=True)
@click.option("--compressed", is_flag=True, help="Also compress each image as a registry would (reads all of it).")
@json_option
def images(engine: str, compressed: bool, as_json: bool) -> int:
    """List the images of this project: the whole size, and what each layer adds to its parent."""
    from strix_finetune.engine.select import connect
    from strix_finetune.inventory import inventory

    connection = connect(engine, os.environ)  # type: ignore[arg-type]
    try:
        rows = inventory(connection, compressed=compressed)
    finally:
        connection.close()
    if as_json:
        click.echo(json.dumps({"images": [row.as_json() for row in rows]}, indent=1))
        return 0
    if not rows:
        click.echo("there is no image yet: run 'strix-finetune build'")
        return 0
    heads = ["IMAGE", "KEY", "SIZE", "ADDS", *(["COMPRESSED"] if compressed else [])]
    cells = [
        [row.name, row.key[:12], _mb(row.size), _mb(row.adds), *([_mb(row.compressed)] if compressed else [])]
        for row in rows
    ]
    widths = [max(len(line[column]) for line in [heads, *cells]) for column in range(len(heads))]
    for line in [heads, *cells]:
        # names to the left, numbers to the right; never cut, whatever the terminal's width
        left = [text.ljust(width) for text, width in zip(line[:2], widths[:2], strict=True)]
        right = [text.rjust(width) for text, width in zip(line[2:], widths[2:], strict=True)]
        click.echo("  ".join([*left, *right]))
    for notice in sorted({row.notice for row in rows if row.notice}):
        click.echo(f"note: {notice}")
    return 0


def _mb(size: int | None) -> str:
    return "?" if size is None else f"{size / 1e6:,.1f} MB"
