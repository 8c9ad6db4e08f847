"""vendor: all inputs of a lock in one folder, to build from without a network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from strix_finetune.cli.lending import lending
from strix_finetune.cli.options import image_options, json_option
from strix_finetune.workspace import Options


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@image_options
@json_option
@click.option("--renew", is_flag=True, help="Ask the archive and the index anew, although DIR is begun or complete.")
@click.option("--check", is_flag=True, help="Fetch nothing; read every file of DIR, exit 1 if one is not what it was.")
def vendor(folder: Path, options: Options, as_json: bool, renew: bool, check: bool) -> int:
    """Put every input of the lock into DIR, which `build --offline DIR` and any web server can use.

    What DIR has already is not fetched again; an interrupted run goes on. DIR may hold several targets and channels.
    """
    from strix_finetune import netconf
    from strix_finetune.builder import Reporter
    from strix_finetune.events import Notice
    from strix_finetune.ui import make_view
    from strix_finetune.vendor.collect import vendor as collect
    from strix_finetune.workspace import open_workspace

    if check:
        return _check(folder, as_json)
    workspace = open_workspace(options, os.environ)
    lock = workspace.read_lock()
    collected = netconf.collect(os.environ, options.network)
    view = make_view(json=as_json)
    try:
        report = Reporter(view)
        with lending(collected, workspace, options, lock.images if lock else {}) as settings:
            done = collect(workspace, settings, folder, lambda text: report(Notice(text)), renew=renew)
        report(done)
    finally:
        view.close()
    return 0


def _check(folder: Path, as_json: bool) -> int:
    import json

    from strix_finetune.vendor import check, manifest

    listed = manifest.read(folder)
    problems = [str(problem) for problem in check.faults(folder, listed)]
    size = sum(entry.size for entry in listed.files.values())
    if as_json:
        click.echo(json.dumps({"files": len(listed.files), "size": size, "problems": problems}))
    else:
        for problem in problems:
            print(f"error: {problem}", file=sys.stderr)
        if not problems:
            names = ", ".join(sorted(listed.locks))
            click.echo(f"{folder}: {len(listed.files)} files, {size / 1e6:.0f} MB, as listed ({names})")
    return 1 if problems else 0
