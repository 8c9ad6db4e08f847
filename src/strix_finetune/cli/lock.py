"""lock: resolve every outside input and write it down."""

from __future__ import annotations

import json
import os

import click

from strix_finetune.cli.options import image_options, json_option
from strix_finetune.workspace import Options


@click.command()
@image_options
@json_option
@click.option(
    "--update", "-u", multiple=True, metavar="NAME", help="Resolve this entry anew: a package, a set, an image."
)
@click.option("--all", "everything", is_flag=True, help="Resolve everything anew.")
@click.option(
    "--check", is_flag=True, help="Write nothing; say what is missing or no longer served, exit 1 if anything is."
)
def lock(options: Options, as_json: bool, update: tuple[str, ...], everything: bool, check: bool) -> int:
    """Resolve what the lock lacks or the archive no longer serves; the rest stays as it is."""
    from strix_finetune import lock as locks
    from strix_finetune import netconf
    from strix_finetune.workspace import open_workspace

    workspace = open_workspace(options, os.environ)
    settings = netconf.collect(os.environ, options.network)
    stack, cache = workspace.stack, workspace.folders.cache
    held = workspace.read_lock()
    if check:
        gaps = [f"missing: {gap}" for gap in locks.missing(stack, held)]
        moved = [f"no longer served: {item}" for item in locks.stale(stack, held, settings, cache)] if held else []
        if held:
            locks.check_versions(stack, held)
        if as_json:
            click.echo(json.dumps({"problems": [*gaps, *moved]}))
        else:
            click.echo("\n".join([*gaps, *moved]) or "the lock is complete and everything in it is served")
        return 1 if gaps or moved else 0
    fresh, changes = locks.make_lock(stack, held, settings, cache, update=update, everything=everything)
    if changes or held is None:
        workspace.save_lock(fresh)
    if as_json:
        rows = [{"kind": item.kind, "name": item.name, "old": item.old, "new": item.new} for item in changes]
        click.echo(json.dumps({"lock": str(workspace.lock_path), "changes": rows}))
    else:
        for change in changes:
            click.echo(str(change))
        click.echo(f"{workspace.lock_path}: {len(changes) or 'no'} change{'s' * (len(changes) != 1)}")
    return 0
