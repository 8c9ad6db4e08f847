"""prune: remove old images of this project, after saying which."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from strix_finetune.cli.options import engine_option, json_option
from strix_finetune.sizes import mb

if TYPE_CHECKING:
    from strix_finetune.prune import Policy
    from strix_finetune.prune_local import Done, Plan


@click.command()
@click.option(
    "--keep", type=click.IntRange(min=0), default=2, show_default=True, help="Newest images to keep of each layer."
)
@click.option(
    "--older-than", default="7d", show_default=True, metavar="AGE", help="Keep what is younger: 36h, 14d, 2w, 0."
)
@click.option("--yes", is_flag=True, help="Remove them. Without it nothing is touched.")
@click.option(
    "--registry", "address", default="", metavar="HOST/NAME", help="Releases and images there, not those of this host."
)
@engine_option()
@json_option
def prune(keep: int, older_than: str, yes: bool, address: str, engine: str, as_json: bool) -> int:
    """Remove old images of this project that nothing refers to: no name, no container, no image that stands on them."""
    from strix_finetune.prune import Policy, seconds

    policy = Policy(keep, seconds(older_than))
    if address:
        return _remote(address, policy, yes=yes, as_json=as_json)
    return _local(engine, policy, yes=yes, as_json=as_json)


def _local(engine: str, policy: Policy, *, yes: bool, as_json: bool) -> int:
    from strix_finetune import prune_local
    from strix_finetune.engine.select import connect
    from strix_finetune.paths import find

    connection = connect(engine, os.environ)  # type: ignore[arg-type]
    try:
        found = prune_local.plan(connection, policy, time.time())
        done = prune_local.carry_out(connection, found.going, find(os.environ).state) if yes else None
    finally:
        connection.close()
    if as_json:
        click.echo(json.dumps(_json(found, done), indent=1))
    else:
        _tell(found, done)
    sys.stdout.flush()
    for verdict, why in done.left if done else ():
        print(f"error: {verdict.shown} is still there: {why}", file=sys.stderr)
    return 1 if done and done.left else 0


def _remote(address: str, policy: Policy, *, yes: bool, as_json: bool) -> int:
    from strix_finetune import prune_remote
    from strix_finetune.cli.signing import registry_of
    from strix_finetune.paths import find
    from strix_finetune.workspace import Options

    registry = registry_of(address, Options())
    where = str(registry.repository)
    file = find(os.environ).state / "unreleased" / f"{where.replace('/', '_')}.json"
    found = prune_remote.plan(registry, policy, time.time(), file)
    removed = prune_remote.carry_out(registry, found.going) if yes else 0
    if as_json:
        rows = [{"name": one.name, "digest": one.digest, "keep": one.keep} for one in found.verdicts]
        click.echo(
            json.dumps({"manifests": rows, "size": found.size, "held": found.before, "removed": removed}, indent=1)
        )
        return 0
    for one in found.verdicts:
        click.echo(f"keep    {one.name}: {one.keep}" if one.keep else f"remove  {one.name}")
    if not found.going:
        click.echo(f"nothing to remove among {len(found.verdicts)} releases and images of {where}")
    elif not yes:
        what = f"{mb(found.size)} of {mb(found.before)} that nothing else has"
        click.echo(f"{len(found.going)} releases and images, {what}; add --yes to remove them")
    else:
        click.echo(
            f"{removed} releases and images removed; in use before {mb(found.before)}, now "
            f"{mb(found.before - found.size)}, once the registry has collected its garbage"
        )
    return 0


def _tell(found: Plan, done: Done | None) -> None:
    for verdict in found.verdicts:
        what = f"keep    {verdict.shown}: {verdict.keep}" if verdict.keep else f"remove  {verdict.shown}"
        click.echo(what)
    if not found.going:
        click.echo(f"nothing to remove among {len(found.verdicts)} images")
    elif done is None:
        click.echo(f"{len(found.going)} images, {mb(found.size)} that nothing else has; add --yes to remove them")
    else:
        measured = ""
        if done.before is not None and done.after is not None:
            measured = f"; in use before {mb(done.before)}, now {mb(done.after)}"
        click.echo(f"{len(done.removed)} images removed, {mb(found.size)} that nothing else had{measured}")


def _json(found: Plan, done: Done | None) -> dict[str, Any]:
    removed = {verdict.image.id for verdict in done.removed} if done else set()
    return {
        "images": [
            {
                "name": verdict.shown,
                "id": verdict.image.id,
                "layer": verdict.layer,
                "size": verdict.image.size,
                "keep": verdict.keep,
                "removed": verdict.image.id in removed,
            }
            for verdict in found.verdicts
        ],
        "size": found.size,
        "before": done.before if done else None,
        "after": done.after if done else None,
    }
