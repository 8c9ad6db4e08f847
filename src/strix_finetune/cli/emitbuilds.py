"""emit bake and emit actions: the build itself, for machines that somebody else runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strix_finetune.workspace import Options

if TYPE_CHECKING:
    from strix_finetune.bake import Rendered

# what of the command line of `emit` each of them makes use of, beside what every kind does
OPTIONS = {
    "bake": frozenset({"channel"}),
    "actions": frozenset({"channel", "to", "runner"}),
}


def bake(targets: tuple[str, ...], channel: str, images: Path | None, output: Path | None, *, force: bool) -> int:
    """Print a bake file, or write it with its contexts into a folder."""
    from strix_finetune import bake as made
    from strix_finetune.netconf import NetSettings
    from strix_finetune.requests import Requests

    stacks = [_rendered(Options(target, channel, images=images)) for target in targets]

    def labels(stack: Rendered, layer: object) -> dict[str, str]:
        return Requests(stack.workspace, stack.lock, NetSettings(), None).labels(layer)  # type: ignore[arg-type]

    text = json.dumps(made.document(stacks, labels), indent=1) + "\n"
    if output is None:
        click.echo(text, nl=False)
        return 0
    from strix_finetune import netconf
    from strix_finetune.borrowed import lend
    from strix_finetune.engine.select import connect

    engine = connect("auto", os.environ)

    def tell(line: str) -> None:
        click.echo(line, err=True)

    try:
        requests = []
        for stack in stacks:
            settings = lend(
                netconf.collect(os.environ, None), stack.workspace.stack, stack.lock.images, lambda: engine, tell
            )
            # whoever builds it has a network of his own
            requests.append(Requests(stack.workspace, stack.lock, settings, engine, lent=NetSettings()))
        size = made.write(stacks, requests, text, output, tell, force=force)
    finally:
        engine.close()
    click.echo(f"wrote {output / made.FILE} and its contexts, {size / 1e6:,.0f} MB", err=True)
    return 0


def actions(
    targets: tuple[str, ...],
    channel: str,
    images: Path | None,
    output: Path | None,
    to: str,
    runner: str,
    *,
    force: bool,
) -> int:
    """Print or write a workflow that builds, tests and pushes each target."""
    from strix_finetune.cli.emitout import out
    from strix_finetune.paths import find
    from strix_finetune.workflow import render
    from strix_finetune.workspace import open_workspace

    rows = [open_workspace(Options(target, channel, images=images), os.environ).stack for target in targets]
    pairs = tuple((stack.target.id, stack.channel.name) for stack in rows)
    made = render(pairs, find().toolbox, to=to, runner=runner)
    return out((made,), output, force=force)


def _rendered(options: Options) -> Rendered:
    from strix_finetune.bake import Rendered
    from strix_finetune.workspace import open_workspace

    workspace = open_workspace(options, os.environ)
    lock = workspace.need_lock()
    return Rendered(workspace, lock, workspace.render(lock))
