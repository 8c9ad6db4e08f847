"""push, pull: one layer's or the final image's names to and from a registry."""

from __future__ import annotations

import os
import sys

import click

from strix_finetune.cli.options import image_options
from strix_finetune.workspace import Options


@click.command()
@click.argument("repository")
@image_options
def push(repository: str, options: Options) -> int:
    """Push the final image, if its tests passed, to REPOSITORY (host/name): as :TARGET and by its key."""
    from strix_finetune import names
    from strix_finetune.builder import make_offline_plan
    from strix_finetune.engine.select import connect
    from strix_finetune.errors import InputError, WorkError
    from strix_finetune.plan import Reuse
    from strix_finetune.workspace import open_workspace

    if ":" in repository.rsplit("/", 1)[-1] or "/" not in repository:
        raise InputError(f"'{repository}' is not a repository", cure="name it as HOST/NAME, without a tag")
    workspace = open_workspace(options, os.environ)
    engine = connect(options.engine, os.environ)  # type: ignore[arg-type]
    try:
        plan, _ = make_offline_plan(workspace, engine)
        step = plan.step(workspace.stack.final.name)
        if not isinstance(step.action, Reuse):
            raise WorkError("the final image is not up to date", cure="run 'strix-finetune build' first")
        if step.action.retest:
            raise WorkError(f"the final image is {step.action.reason}", cure="run 'strix-finetune build' first")
        target = workspace.stack.target.id
        for tag in (f"{target}-{step.layer.key[: names.KEY_DIGITS]}", target):
            remote = f"{repository}:{tag}"
            engine.tag(step.action.image, remote)
            try:
                digest = engine.push(remote, lambda line: print(line, file=sys.stderr))
            finally:
                engine.untag(remote)
            click.echo(f"{remote}@{digest}")
    finally:
        engine.close()
    return 0


@click.command()
@click.argument("repository")
@image_options
def pull(repository: str, options: Options) -> int:
    """Pull REPOSITORY:TARGET and give it this project's local name; an image of another target is refused."""
    from strix_finetune import names
    from strix_finetune.engine.select import connect
    from strix_finetune.errors import WorkError
    from strix_finetune.workspace import open_workspace

    workspace = open_workspace(options, os.environ)
    target = workspace.stack.target.id
    engine = connect(options.engine, os.environ)  # type: ignore[arg-type]
    try:
        remote = f"{repository}:{target}"
        image = engine.pull(remote, lambda line: print(line, file=sys.stderr))
        held = image.labels.get(names.TARGET)
        if held != target or names.KEY not in image.labels:
            engine.untag(remote)
            what = f"is made for {held}" if held else "is not one of this project"
            raise WorkError(f"the image {remote} {what}", cure=f"it should be made for {target}: check the repository")
        engine.tag(image.id, names.final_ref(target))
        engine.untag(remote)
        click.echo(f"{names.final_ref(target)}, key {image.labels[names.KEY][: names.KEY_DIGITS]}")
    finally:
        engine.close()
    return 0
