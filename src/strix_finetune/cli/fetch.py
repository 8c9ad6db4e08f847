"""fetch demo: the model of the demo."""

from __future__ import annotations

import os
import sys

import click

from strix_finetune.cli.options import image_options
from strix_finetune.workspace import Options


@click.group()
def fetch() -> None:
    """Get what the demo needs."""


@fetch.command(name="demo")
@image_options
def fetch_demo(options: Options) -> int:
    """Get the demo's model (98 MB, hash-checked) and make a Hugging Face folder of it in the user's cache."""
    from strix_finetune import demomodel, names, netconf
    from strix_finetune.engine.select import connect
    from strix_finetune.errors import WorkError
    from strix_finetune.workspace import open_workspace

    workspace = open_workspace(options, os.environ)
    cache = workspace.folders.cache
    gguf = demomodel.fetch_gguf(cache, netconf.collect(os.environ, options.network))
    engine = connect(options.engine, os.environ)  # type: ignore[arg-type]
    try:
        image = names.final_ref(workspace.stack.target.id)
        if engine.image(image) is None:
            raise WorkError(f"there is no image {image} to convert the model with", cure="run 'strix-finetune build'")
        folder = demomodel.make_folder(engine, image, gguf, cache, _write)
    finally:
        engine.close()
    click.echo(str(folder))
    return 0


def _write(data: bytes) -> None:
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()
