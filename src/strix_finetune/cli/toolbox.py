"""toolbox: the image as a Toolbx container, and as the one that `toolbox create` takes by itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strix_finetune import leftovers
from strix_finetune.cli.options import image_options
from strix_finetune.workspace import Options

if TYPE_CHECKING:
    from strix_finetune.engine.base import Image

NAME = "strix-finetune"
_copy = click.option("--copy", is_flag=True, help="Take Docker's image even where Podman has one.")
_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": True}


@click.group()
def toolbox() -> None:
    """Toolbx containers of the image, with your home and all devices.

    \b
    strix-finetune toolbox create     make one, and look at what came of it
    strix-finetune toolbox refresh    a newer image, and a new one in the place of an old one
    strix-finetune toolbox setup      make `toolbox create NAME` take this image
    """


@toolbox.command()
@image_options
@_copy
@click.option("--undo", is_flag=True, help="Take it out again.")
def setup(options: Options, copy: bool, undo: bool) -> int:
    """Write the image into your toolbox.conf, so that `toolbox create NAME` alone takes it."""
    from strix_finetune.toolbx import conf

    path = _conf_path()
    text = path.read_text("utf-8") if path.exists() else ""
    if undo:
        before = conf.without_image(text, path)
        if before is None:
            path.unlink()
        else:
            _write(path, before)
        click.echo(f"{path}: {'removed' if before is None else 'as it was before'}")
        return 0
    ref, _ = _target(options)
    made = conf.with_image(text, ref, path)  # what is refused is refused before gigabytes move
    _image(options, copy=copy)
    if made != text:
        _write(path, made)
    click.echo(f'{path}: [general] image = "{ref}"')
    click.echo(f"now `toolbox create {NAME}` makes a container of it, and `toolbox enter {NAME}` opens it")
    click.echo("every `toolbox create` without --image takes it; undo: strix-finetune toolbox setup --undo")
    return 0


@toolbox.command(context_settings=_PASS_ON)
@image_options
@_copy
@click.argument("name", default=NAME)
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
def create(options: Options, copy: bool, name: str, more: tuple[str, ...]) -> int:
    """Create the Toolbx container NAME of the image."""
    from strix_finetune.errors import InputError, Problem
    from strix_finetune.toolbx import make, programs

    with programs.found(os.environ) as both:
        flags = [word for word in (name, *more) if word.startswith("-")] or list(more)
        if flags:
            what = f"Toolbx {both.version} ignores '{flags[0]}': it takes no flags for its containers"
            cure = "they have all of /dev and the host's network, limits and shared memory; or use `strix-finetune run`"
            raise InputError(Problem(what, cure=cure))
        ref, _ = _target(options)
        make.create(both, make.Wanted(name, ref, _image(options, copy=copy)), _say)
    return 0


@toolbox.command()
@image_options
@_copy
@click.option("--force", is_flag=True, help="Also where the container is of the newest image already.")
@click.option("--from", "repository", default="", metavar="HOST/NAME", help="Pull the image from there first.")
@click.option("--as-is", is_flag=True, help="Neither pull nor build: the image that is in the store.")
@click.argument("name", default=NAME)
@click.pass_context
def refresh(
    context: click.Context, options: Options, copy: bool, force: bool, repository: str, as_is: bool, name: str
) -> int:
    """Make the container NAME anew: of an image that is pulled or built first, beside the old one, tested, swapped.

    Without --from what has changed is built, by the engine that built the image. The old container survives whatever
    fails.
    """
    from strix_finetune.errors import InputError
    from strix_finetune.toolbx import make, programs

    if as_is and repository:
        raise InputError("--as-is pulls nothing, and --from does", cure="give one of them")
    with programs.found(os.environ) as both:
        make.existing(both, name, _say)  # asked before hours of building
        ref, _ = _target(options)
        if not as_is:
            copy = _renewed(context, options, repository) or copy
        make.refresh(both, make.Wanted(name, ref, _image(options, copy=copy)), _say, force=force)
    return 0


def _renewed(context: click.Context, options: Options, repository: str) -> bool:
    """Pull or build the image. Returns whether it is Docker's, from where it must be copied."""
    from strix_finetune.cli.build import build, spread
    from strix_finetune.cli.registry import pull
    from strix_finetune.errors import WorkError
    from strix_finetune.toolbx.renew import source
    from strix_finetune.workspace import open_workspace

    stack = open_workspace(options, os.environ).stack
    root = next(node.name for node in stack.nodes if node.parent is None)
    chosen = source(repository, root, stack.target.id, os.environ)
    with_engine = spread(options) | {"engine": chosen.engine}
    if chosen.repository:
        code = context.invoke(pull, address=chosen.repository, **with_engine)
    else:
        code = context.invoke(build, **with_engine)
    if code:
        raise WorkError("the image was not renewed, so the container stays as it is", cure="see above")
    return chosen.engine == "docker"


def _target(options: Options) -> tuple[str, str]:
    """The image's name and its target."""
    from strix_finetune import names
    from strix_finetune.errors import InputError, Problem
    from strix_finetune.workspace import open_workspace

    if options.engine == "docker":
        raise InputError(Problem("Toolbx works with Podman only", cure="leave --engine out; Docker's image is copied"))
    target = open_workspace(options, os.environ).stack.target.id
    return names.final_ref(target), target


def _image(options: Options, *, copy: bool) -> Image:
    from strix_finetune.toolbx.store import ensure

    ref, target = _target(options)
    return ensure(ref, target, os.environ, _say, copy=copy)


def _conf_path() -> Path:
    """Where Toolbx looks for the user's own file: os.UserConfigDir of Go."""
    base = os.environ.get("XDG_CONFIG_HOME") or ""
    folder = Path(base) if base else Path(os.environ.get("HOME") or "~").expanduser() / ".config"
    return folder / "containers/toolbox.conf"


def _write(path: Path, text: str) -> None:
    """Replace a file, or make it; where it is a link (dotfiles), what it points at."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    leftovers.write(path, text, path.stat().st_mode & 0o777 if path.exists() else None)


def _say(text: str) -> None:
    click.echo(text)
    sys.stdout.flush()
