"""workbench: JupyterLab in the image, on a port of this machine alone."""

from __future__ import annotations

from pathlib import Path

import click

from strix_finetune.cli.options import image_options
from strix_finetune.workspace import Options

LAYER = "workbench"


@click.command()
@image_options
@click.option(
    "--port", type=click.IntRange(1024, 65535), default=8888, show_default=True, help="On 127.0.0.1, in and outside."
)
@click.option(
    "--examples", type=click.Path(path_type=Path), metavar="DIR", help="Copy the example notebooks into DIR before."
)
@click.option(
    "--gpu", "gpus", type=click.IntRange(0), multiple=True, metavar="N", help="That GPU alone, by doctor's numbers."
)
@click.option("--print", "only_print", is_flag=True, help="Show the command that would do it, and run nothing.")
def workbench(options: Options, port: int, examples: Path | None, gpus: tuple[int, ...], only_print: bool) -> int:
    """Start JupyterLab in the current folder; the address that it prints has the token, and Ctrl-C ends it.

    The image is that of the layer workbench: `strix-finetune build workbench` makes it.
    """
    from strix_finetune.cli.run import launch
    from strix_finetune.errors import InputError
    from strix_finetune.launch import Wishes

    if examples and not (Path.cwd() / examples).resolve().is_relative_to(Path.cwd().resolve()):
        raise InputError(
            f"{examples} lies outside the current folder, which is all that the container sees", cure="name one in it"
        )
    if not only_print and _taken(port):
        raise InputError(f"something else listens on port {port}", cure=f"give another --port, such as {port + 1}")
    words = ["workbench", "--published", "--port", str(port)]
    words += ["--examples", str(examples)] if examples else []
    return launch(options, words, only_print=only_print, wishes=Wishes(gpus=gpus), layer=LAYER, port=port)


def _taken(port: int) -> bool:
    """Whether the engine could not publish the port: what it would say about that is not always a sentence."""
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
        return False
