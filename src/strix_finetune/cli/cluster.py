"""cluster: several machines. Each command is in a module of its own and imported when it is called."""

from __future__ import annotations

import click

from strix_finetune.cli import LazyGroup

# command → module:attribute
COMMANDS: dict[str, tuple[str, str]] = {
    "check": ("strix_finetune.cli.clustercheck:check", "Say before the start what would fail, and the cure."),
    "train": ("strix_finetune.cli.clustertrain:train", "Train a recipe on all of them."),
}


@click.group(cls=LazyGroup, table=COMMANDS, under="cluster ")
def cluster() -> None:
    """Train on several machines, which cluster.toml names."""
