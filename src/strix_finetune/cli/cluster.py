"""cluster: several machines. Each command is in a module of its own and imported when it is called."""

from __future__ import annotations

import importlib

import click

# command → module:attribute
COMMANDS: dict[str, tuple[str, str]] = {
    "check": ("strix_finetune.cli.clustercheck:check", "Say before the start what would fail, and the cure."),
    "train": ("strix_finetune.cli.clustertrain:train", "Train a recipe on all of them."),
}


class ClusterGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            from strix_finetune.errors import InputError, nearest

            raise InputError(f"there is no command 'cluster {args[0]}'", cure=nearest(args[0], list(COMMANDS)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=ClusterGroup)
def cluster() -> None:
    """Train on several machines, which cluster.toml names."""
