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
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("IMAGE", "KEY"):
        table.add_column(name, no_wrap=True)
    for name in ("SIZE", "ADDS", *(["COMPRESSED"] if compressed else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = [row.name, row.key[:12], _mb(row.size), _mb(row.adds)]
        table.add_row(*cells, *([_mb(row.compressed)] if compressed else []))
    Console(soft_wrap=True).print(table)
    for notice in sorted({row.notice for row in rows if row.notice}):
        click.echo(f"note: {notice}")
    return 0


def _mb(size: int | None) -> str:
    return "?" if size is None else f"{size / 1e6:,.1f} MB"
