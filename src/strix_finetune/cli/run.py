"""train, run, shell: the image with the right flags for this engine and host."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from strix_finetune.cli.options import image_options
from strix_finetune.workspace import Options

_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_print = click.option("--print", "only_print", is_flag=True, help="Show what would be run, and run nothing.")


@click.command(context_settings=_PASS_ON)
@image_options
@_print
@click.argument("recipe")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def train(options: Options, recipe: str, arguments: tuple[str, ...], only_print: bool) -> int:
    """Train RECIPE (a file, or the name of one that ships) in the image; ARGUMENTS go to `train`."""
    from strix_finetune.launch import recipe_argument

    inside, folders = recipe_argument(recipe, Path.cwd())
    return launch(options, ["train", inside, *arguments], folders, only_print=only_print)


@click.command(context_settings=_PASS_ON)
@image_options
@_print
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(options: Options, command: tuple[str, ...], only_print: bool) -> int:
    """Run COMMAND in the image, in the current folder."""
    return launch(options, command, (), only_print=only_print)


@click.command()
@image_options
def shell(options: Options) -> int:
    """Open a login shell in the image, in the current folder."""
    return launch(options, ["bash", "-l"], (), only_print=False)


def launch(options: Options, command: Sequence[str], folders: Sequence[Path], *, only_print: bool) -> int:
    """Run `command` in the final image of the chosen target and return its exit code."""
    from strix_finetune import hostgpu, names
    from strix_finetune.engine.select import connect
    from strix_finetune.errors import WorkError
    from strix_finetune.launch import Host, request
    from strix_finetune.signals import describe_exit
    from strix_finetune.workspace import open_workspace

    workspace = open_workspace(options, os.environ)
    target = workspace.stack.target
    image = names.final_ref(target.id)
    engine = connect(options.engine, os.environ)  # type: ignore[arg-type]
    try:
        held = engine.image(image)
        if not only_print and held is None:
            raise WorkError(f"there is no image {image}", cure=f"run 'strix-finetune build --target {target.id}'")
        devices = hostgpu.devices() if target.spec.kind == "gpu" else ()
        cache = workspace.folders.cache
        host = Host(
            uid=os.getuid(),
            gid=os.getgid(),
            workdir=Path.cwd(),
            models=cache / "models",
            hub=Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface"),
            env=os.environ,
            devices=devices,
            groups=hostgpu.groups(devices),
            interactive=sys.stdin.isatty() and sys.stdout.isatty(),
        )
        made = request(image, command, host, engine.info, folders, held.labels.get(names.KEY, "") if held else "")
        if only_print:
            from strix_finetune.show import command_line

            click.echo(shlex.join(command_line(made, engine.info)))
            return 0
        for folder in (host.models, host.hub):
            folder.mkdir(parents=True, exist_ok=True)
        ended = engine.run(made, _write)
        if ended.out_of_memory:
            print("error: the container used more memory than it may", file=sys.stderr)
        elif ended.signal:
            print(f"error: the container ended by {describe_exit(ended.exit_code)}", file=sys.stderr)
        return ended.exit_code
    finally:
        engine.close()


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
