"""cluster check: say before the start what would fail, and how it is put right."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strix_finetune.cli.options import json_option

if TYPE_CHECKING:
    from strix_finetune.cluster.nodes import Cluster

# of what goes into a file, as the other reports have it
_WIDTH = 118


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("cluster.toml"))
@click.option("--target", "-t", default="", metavar="GFX", help="GPU target of the image. Default: as for `train`.")
@click.option("--image", default="", metavar="NAME", help="Image. Default: that of cluster.toml, else the target's.")
@click.option("--brief", is_flag=True, help="Show only what is wrong.")
@json_option
def check(file: Path, target: str, image: str, brief: bool, as_json: bool) -> int:
    """Check the machines of FILE (default: cluster.toml) and the ways between them.

    Looks at engines, image and packages, clocks, interfaces, ports, packet sizes, speed, RDMA, kernels and free space,
    and sums over all nodes as training does. Starts a container on each node, and leaves nothing there.
    The exit code is 1 when training would fail.
    """
    from rich.console import Console

    from strix_finetune.cluster import show
    from strix_finetune.cluster.examine import examine
    from strix_finetune.cluster.file import read

    cluster = read(file)
    chosen = image_of(cluster, image, target)
    tell = Console(stderr=True)
    with tell.status("") as status:
        examined = examine(cluster, chosen, os.environ, lambda text: status.update(f"{text} …"))
    if as_json:
        click.echo(json.dumps(show.as_json(examined), indent=1, ensure_ascii=False))
    else:
        out = Console(highlight=False)
        show.table(examined, out if out.is_terminal else Console(highlight=False, width=_WIDTH), short=brief)
    return int(examined.failed)


def image_of(cluster: Cluster, image: str = "", target: str = "") -> str:
    """The image that is meant: by the command line, by cluster.toml, or the final one of the target."""
    if image or (cluster.image and not target):
        return image or cluster.image
    from strix_finetune import names
    from strix_finetune.workspace import Options, open_workspace

    return names.final_ref(open_workspace(Options(target=target), os.environ).stack.target.id)
