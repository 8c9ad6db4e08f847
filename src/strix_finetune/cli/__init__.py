"""The command line: thin. Each command lives in its own module and is imported only when it is called."""

from __future__ import annotations

import contextlib
import errno
import importlib
import re
import sys
from collections.abc import Mapping
from typing import Any

import click

from strix_finetune import fast
from strix_finetune.errors import InputError, StrixError, nearest

# command → module:attribute; `strix-finetune --help` reads only the names and the texts here
COMMANDS = {
    "plan": ("strix_finetune.cli.build:plan", "Show what a build would do, and why."),
    "build": ("strix_finetune.cli.build:build", "Build the layers that are not up to date, test and tag them."),
    "render": ("strix_finetune.cli.build:render", "Print or write the rendered Dockerfiles."),
    "smoke": ("strix_finetune.cli.build:smoke", "Run the smoke tests of existing layers again."),
    "images": ("strix_finetune.cli.images:images", "List the images of this project with their sizes."),
    "diff": ("strix_finetune.cli.diff:diff", "Explain how two images differ: packages, files, settings, sizes."),
    "lock": ("strix_finetune.cli.lock:lock", "Resolve every outside input and write the lock."),
    "vendor": ("strix_finetune.cli.vendor:vendor", "Put every input of the lock into one folder."),
    "push": ("strix_finetune.cli.registry:push", "Push tested images to a registry."),
    "pull": ("strix_finetune.cli.registry:pull", "Pull images from a registry."),
    "sbom": ("strix_finetune.cli.supply:sbom", "List everything in an image, with licences, as CycloneDX or SPDX."),
    "sign": ("strix_finetune.cli.signing:sign", "Sign what an image is made of, and how it was made."),
    "verify": ("strix_finetune.cli.signing:verify", "Check an image against what was signed about it."),
    "scan": ("strix_finetune.cli.signing:scan", "Look for known vulnerabilities with a scanner of yours."),
    "prune": ("strix_finetune.cli.prune:prune", "Remove old images that nothing refers to."),
    "fetch": ("strix_finetune.cli.fetch:fetch", "Get what the demo needs."),
    "train": ("strix_finetune.cli.run:train", "Run `train` in the image, with the right flags for this host."),
    "run": ("strix_finetune.cli.run:run", "Run any command in the image."),
    "shell": ("strix_finetune.cli.run:shell", "Open a shell in the image."),
    "cluster": ("strix_finetune.cli.cluster:cluster", "Check several machines, and train on them."),
    "workbench": ("strix_finetune.cli.workbench:workbench", "Start JupyterLab in the image, for this machine alone."),
    "emit": ("strix_finetune.cli.emit:emit", "Print definitions for Distrobox, Quadlet, compose and others."),
    "toolbox": ("strix_finetune.cli.toolbox:toolbox", "Make the image a Toolbx container."),
    "targets": ("strix_finetune.cli.targets:targets", "List the GPU targets."),
    "doctor": ("strix_finetune.cli.doctor:doctor", "Check this host: GPU, rights, kernel, memory, engine, disk."),
    "inspect": ("strix_finetune.cli.inspect:command", "Show which GPU targets a library holds code for."),
    "demo": ("strix_finetune.cli.demo:demo", "Build, fetch, fine-tune, and compare answers before and after."),
}


class LazyGroup(click.Group):
    """Imports a command's module when the command is called, not to list it.

    `table`: command → (module:attribute, what help says of it). `under`: what stands before a command's name.
    """

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], under: str = "", **more: Any) -> None:
        super().__init__(*args, **more)
        self._table = table
        self._under = under

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        module, attribute = self._table[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self._table:
            raise InputError(f"there is no command '{self._under}{args[0]}'", cure=nearest(args[0], list(self._table)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._table.items()])


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="strix-finetune", prog_name="strix-finetune")
def root() -> None:
    """Locked, layered, smoke-tested images for fine-tuning LLMs on AMD GPUs."""


def main(arguments: list[str]) -> int:
    """Run the command line and return the exit code: 0 done, 1 the work failed, 2 wrong input, 130 interrupted."""
    try:
        result = root.main(arguments, prog_name="strix-finetune", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort:
        return _interrupted()
    except KeyboardInterrupt:
        return _interrupted()
    except click.UsageError as error:
        print(_usage(error), file=sys.stderr)
        return 2
    except click.ClickException as error:
        print(f"error: {error.format_message()}", file=sys.stderr)
        return error.exit_code
    except StrixError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        fast.silence(sys.stdout)
        return 1
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        cure = "; free some space and try again" if error.errno == errno.ENOSPC else ""
        print(f"error: {what}{(error.strerror or str(error)).lower()}{cure}", file=sys.stderr)
        return 1
    except Exception as error:  # noqa: BLE001 (a fault of ours: people get a sentence, and we get the traceback)
        return _our_fault(error)
    return result if isinstance(result, int) else 0


def _usage(error: click.UsageError) -> str:
    """A wrong command line in one sentence, with the nearest right word; without any command, the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return error.format_message()
    message = error.format_message().rstrip(".")
    cure = f"see '{error.ctx.command_path} --help'" if error.ctx else "see --help"
    if isinstance(error, click.NoSuchOption):
        message = f"there is no option '{error.option_name}'"
        if error.ctx:
            options = [name for item in error.ctx.command.get_params(error.ctx) for name in item.opts]
            cure = nearest(error.option_name, [name for name in options if name.startswith("--")])
    elif isinstance(error, click.BadParameter) and error.param and isinstance(error.param.type, click.Choice):
        given = re.search(r"'([^']*)' is not one of", message)
        message = f"{error.param.opts[0]} cannot be '{given[1]}'" if given else message
        cure = nearest(given[1], [str(choice) for choice in error.param.type.choices]) if given else cure
    return f"error: {message[:1].lower()}{message[1:]}; {cure}"


def _our_fault(error: Exception) -> int:
    import tempfile
    import traceback

    words = str(error).splitlines()
    what = f"{type(error).__name__}: {words[0]}" if words else type(error).__name__
    where = ""
    with contextlib.suppress(OSError):
        with tempfile.NamedTemporaryFile("w", prefix="strix-finetune-", suffix=".txt", delete=False) as stream:
            traceback.print_exception(error, file=stream)
        where = f" with {stream.name}"
    print(f"error: a fault in strix-finetune itself ({what}); please report it{where}", file=sys.stderr)
    return 1


def _interrupted() -> int:
    print("interrupted; what was finished is kept, the next run goes on from there", file=sys.stderr)
    return 130
