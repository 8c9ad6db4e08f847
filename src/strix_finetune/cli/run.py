"""train, run, shell: the image with the right flags for this engine and host."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from strix_finetune.cli.options import image_options
from strix_finetune.workspace import Options

if TYPE_CHECKING:
    from strix_finetune.launch import Wishes
    from strix_finetune.recipefacts import RecipeFacts

F = TypeVar("F", bound=Callable[..., Any])
_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30}


def _size(_context: click.Context, _option: click.Parameter, value: str) -> int | None:
    """Bytes of "16g"; 0 for "host", None for what the launcher takes."""
    if not value:
        return None
    found = re.fullmatch(r"([1-9]\d{0,12})([kmg]?)i?b?", value.lower())
    if value != "host" and not found:
        raise click.BadParameter(f"'{value}' is neither a size such as 16g nor host")
    return int(found[1]) << _UNITS[found[2]] if found else 0


def variables(_context: click.Context, _option: click.Parameter, words: tuple[str, ...]) -> dict[str, str]:
    """Variables for the container: NAME=VALUE, or NAME with the value that it has here."""
    from strix_finetune.launch import SECRETS

    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise click.BadParameter(f"'{word}' is neither NAME nor NAME=VALUE")
        if name in SECRETS:
            raise click.BadParameter(f"{name} would be seen by everybody who may look; export it, it goes as a file")
        if not equals and name not in os.environ:
            raise click.BadParameter(f"{name} is not set here")
        found[name] = value if equals else os.environ[name]
    return found


def _launcher(command: F) -> F:
    """--print, --shm, --rdma, --gpu and --env."""
    for option in (
        click.option(
            "--env",
            "-e",
            multiple=True,
            metavar="NAME[=VALUE]",
            callback=variables,
            help="A variable for the container; again for more.",
        ),
        click.option(
            "--gpu",
            "gpus",
            type=click.IntRange(0),
            multiple=True,
            metavar="N",
            help="That GPU alone, by doctor's numbers; again for more. Default: all of the target's kind.",
        ),
        click.option("--rdma", is_flag=True, help="The host's RDMA adapters, its network, and memory without a limit."),
        click.option(
            "--shm", default="", metavar="SIZE", callback=_size, help="Of /dev/shm, such as 16g, or host. Default: 8g."
        ),
        click.option("--print", "only_print", is_flag=True, help="Show the command that would do it, and run nothing."),
    ):
        command = option(command)
    return command


@click.command(context_settings=_PASS_ON)
@image_options
@_launcher
@click.argument("recipe")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def train(options: Options, recipe: str, arguments: tuple[str, ...], only_print: bool, **wishes: Any) -> int:
    """Train RECIPE (a file, or the name of one that ships) in the image; ARGUMENTS go to `train`.

    The other commands of `train` work, too: `strix-finetune train check RECIPE`.
    """
    return train_in_image(options, (recipe, *arguments), only_print=only_print, wishes=_wishes(**wishes))


@click.command(context_settings=_PASS_ON)
@image_options
@_launcher
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(options: Options, command: tuple[str, ...], only_print: bool, **wishes: Any) -> int:
    """Run COMMAND in the image, in the current folder."""
    return launch(options, command, only_print=only_print, wishes=_wishes(**wishes))


@click.command()
@image_options
@_launcher
def shell(options: Options, only_print: bool, **wishes: Any) -> int:
    """Open a login shell in the image, in the current folder."""
    return launch(options, ["bash", "-l"], only_print=only_print, wishes=_wishes(**wishes))


def train_in_image(
    options: Options, words: Sequence[str], *, only_print: bool = False, wishes: Wishes | None = None
) -> int:
    """`train` with these words in the image; a recipe and all that it names is looked up here first."""
    from strix_finetune import recipefacts
    from strix_finetune.caches import CACHES
    from strix_finetune.paths import find
    from strix_train.cli import cli as inner

    named = words[0] if words[0] in inner.commands else ""
    before, rest = (["train", named], list(words[1:])) if named else (["train"], list(words))
    if named in ("", "run", "check") and rest and not rest[0].startswith("-"):
        folders = find(os.environ)
        models = next(cache for cache in CACHES if cache.name == "models").place(os.environ)
        facts = recipefacts.find(rest[0], rest[1:], Path.cwd(), folders.recipes, models)
        return launch(options, [*before, facts.argument, *rest[1:]], facts, only_print=only_print, wishes=wishes)
    facts = recipefacts.of_words(rest, Path.cwd())
    return launch(options, [*before, *rest], facts, only_print=only_print, wishes=wishes)


def launch(
    options: Options,
    command: Sequence[str],
    recipe: RecipeFacts | None = None,
    *,
    only_print: bool = False,
    wishes: Wishes | None = None,
    layer: str = "",
    port: int = 0,
) -> int:
    """Run `command` in the image of `layer`, or the final one, of the chosen target, and return its exit code."""
    from strix_finetune import hostfacts, names
    from strix_finetune.engine.drivers import PID_LABEL
    from strix_finetune.engine.select import connect
    from strix_finetune.errors import WorkError
    from strix_finetune.launch import NOTHING, USUAL, plan
    from strix_finetune.signals import describe_exit
    from strix_finetune.workspace import open_workspace

    wishes = wishes or USUAL
    if wishes.gpus and not options.target:
        options = replace(options, target=_kind(wishes.gpus))
    workspace = open_workspace(options, os.environ)
    target = workspace.stack.target
    image = names.moving_ref(layer, target.id) if layer else names.final_ref(target.id)
    engine = connect(options.engine, os.environ)  # type: ignore[arg-type]
    try:
        held = engine.image(image)
        if not only_print and held is None:
            what = f"--target {target.id} {layer}".rstrip()
            raise WorkError(f"there is no image {image}", cure=f"run 'strix-finetune build {what}'")
        host = hostfacts.read(
            os.environ,
            target=target.id if target.spec.kind == "gpu" else "",
            gpus=wishes.gpus,
            interactive=sys.stdin.isatty() and sys.stdout.isatty(),
        )
        if host.selinux:
            host = replace(host, foreign=hostfacts.foreign(host, recipe or NOTHING))
        key = held.labels.get(names.KEY, "") if held else ""
        arguments = (image, command)
        if only_print:
            from strix_finetune.show import command_line

            made = plan(*arguments, host, engine.info, recipe or NOTHING, wishes, key, port)
            _tell(made.notes)
            if os.environ.get("HF_TOKEN"):
                _tell(["HF_TOKEN would go along as a file of its own, which this command does without"])
            line = shlex.join(command_line(made.request, engine.info))
            # the engine refuses a mount of what is missing; as in a run, these folders are the caller's
            missing = [str(folder) for folder in made.folders if not folder.exists()]
            click.echo(f"{shlex.join(['mkdir', '-p', *missing])} && {line}" if missing else line)
            return 0
        engine.reap(PID_LABEL)
        with hostfacts.token(os.environ, workspace.folders) as token:
            host = replace(host, token=token or host.token)
            made = plan(*arguments, host, engine.info, recipe or NOTHING, wishes, key, port)
            _tell(made.notes)
            for folder in made.folders:
                folder.mkdir(parents=True, exist_ok=True)
            ended = engine.run(made.request, _write)
        if ended.out_of_memory:
            print("error: the container used more memory than it may", file=sys.stderr)
        elif ended.signal:
            print(f"error: the container ended by {describe_exit(ended.exit_code)}", file=sys.stderr)
        return ended.exit_code
    finally:
        engine.close()


def _wishes(shm: int | None, rdma: bool, gpus: tuple[int, ...], env: dict[str, str]) -> Wishes:
    from strix_finetune.launch import SHM_BYTES, Wishes

    return Wishes(rdma=rdma, shm=SHM_BYTES if shm is None else shm, gpus=gpus, env=env)


def _kind(numbers: Sequence[int]) -> str:
    """The target of the GPUs with these numbers."""
    from strix_finetune import hostgpu
    from strix_finetune.errors import InputError

    kinds = dict.fromkeys(gpu.gfx for gpu in hostgpu.choose(hostgpu.gpus(), "", numbers))
    if len(kinds) > 1:
        raise InputError(f"no image is for {' and '.join(kinds)} at once", cure="name GPUs of one kind")
    return next(iter(kinds))


def _tell(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
