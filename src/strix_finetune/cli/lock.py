"""lock: resolve every outside input and write it down, or look over what is written down."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

from strix_finetune.cli.lending import lending
from strix_finetune.cli.options import image_options, json_option
from strix_finetune.workspace import Options

if TYPE_CHECKING:
    from strix_finetune.lockmodel import Lock
    from strix_finetune.workspace import Workspace


@click.command()
@image_options
@json_option
@click.option(
    "--update", "-u", multiple=True, metavar="NAME", help="Resolve this entry anew: a package, a set, an image."
)
@click.option("--all", "everything", is_flag=True, help="Resolve everything anew.")
@click.option(
    "--from-lock",
    default="",
    metavar="FILE|TARGET",
    help="Take the versions of another target's lock; only what belongs to the target is another file.",
)
@click.option(
    "--accept-known-bad",
    "accept",
    multiple=True,
    metavar="ID",
    help="Lock a version all the same that is known to be bad; the lock says so.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Write nothing; say what is missing, wrong, known to be bad or no longer served, exit 1 if anything is.",
)
@click.option("--offline", is_flag=True, help="With --check: ask nobody whether it is still served.")
def lock(
    options: Options,
    as_json: bool,
    update: tuple[str, ...],
    everything: bool,
    from_lock: str,
    accept: tuple[str, ...],
    check: bool,
    offline: bool,
) -> int:
    """Resolve what the lock lacks or the archive no longer serves; the rest stays as it is."""
    from strix_finetune import changes as differences
    from strix_finetune import fromlock, netconf, wanted
    from strix_finetune import lock as locks
    from strix_finetune.errors import InputError
    from strix_finetune.workspace import open_workspace

    if offline and not check:
        raise InputError("--offline goes with --check", cure="a lock cannot be made without asking")
    if check and (update or everything or from_lock or accept):
        raise InputError("--check changes nothing", cure="leave the other options out")
    workspace = open_workspace(options, os.environ)
    held = workspace.read_lock()
    if check:
        return _check(workspace, options, held, as_json, offline)
    collected = netconf.collect(os.environ, options.network)
    other = fromlock.read(from_lock, workspace)[0] if from_lock else None
    before = fromlock.as_previous(other, workspace) if other else held
    pinned = {name: digest for name, digest in (held.images if held else {}).items() if name not in update}
    with lending(collected, workspace, options, {} if everything else pinned) as settings:
        fresh, changes = locks.make_lock(
            workspace.stack,
            before,
            settings,
            workspace.folders.cache,
            update=update,
            everything=everything,
            accept=accept,
            say=lambda text: click.echo(text, err=True),
        )
    if other:
        fromlock.check(other, fresh)
        changes = tuple(differences.changes(held or wanted.empty_lock(workspace.stack), fresh))
    if fresh != held:
        workspace.save_lock(fresh)
    if as_json:
        rows = [{"kind": item.kind, "name": item.name, "old": item.old, "new": item.new} for item in changes]
        click.echo(json.dumps({"lock": str(workspace.lock_path), "changes": rows}))
        return 0
    for change in changes:
        click.echo(str(change))
    for name in accept:
        if name not in fresh.accepted:
            click.echo(f"{name} does not apply to this lock, and is not accepted")
    click.echo(f"{workspace.lock_path}: {len(changes) or 'no'} change{'s' * (len(changes) != 1)}")
    return 0


def _check(workspace: Workspace, options: Options, held: Lock | None, as_json: bool, offline: bool) -> int:
    from strix_finetune import lockcheck, netconf

    stack = workspace.stack
    report = lockcheck.offline(stack, held)
    if held and not offline:
        with lending(netconf.collect(os.environ, options.network), workspace, options, held.images) as settings:
            report += lockcheck.online(stack, held, settings, workspace.folders.cache)
    if as_json:
        click.echo(json.dumps({"problems": report.problems, "notes": report.notes}))
    else:
        good = "the lock is complete" + ("" if offline else " and everything in it is served")
        click.echo("\n".join([*report.problems, *report.notes, *(() if report.problems else (good,))]))
    return 1 if report.problems else 0
