"""cluster train: one recipe on the machines of cluster.toml."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strix_finetune.cli.run import variables

if TYPE_CHECKING:
    from strix_finetune.cluster.nodes import Cluster
    from strix_finetune.cluster.prepare import Environments
    from strix_finetune.cluster.reach import Reached, Unreached


@click.command()
@click.argument("recipe")
@click.option(
    "--cluster",
    "file",
    type=click.Path(path_type=Path),
    default=Path("cluster.toml"),
    show_default=True,
    help="The machines.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a key of the recipe.")
@click.option("--resume", is_flag=True, help="Go on with the newest unfinished run of RECIPE on the head.")
@click.option("--run", "run", default="", metavar="NAME", help="Name of the run's folder. Default: RECIPE-TIME.")
@click.option("--target", "-t", default="", metavar="GFX", help="GPU target of the image. Default: as for `train`.")
@click.option("--image", default="", metavar="NAME", help="Image. Default: that of cluster.toml, else the target's.")
@click.option(
    "--env",
    "-e",
    "more",
    multiple=True,
    metavar="NAME[=VALUE]",
    callback=variables,
    help="A variable for the containers, after what the check chose; again for more.",
)
@click.option("--no-check", is_flag=True, help="Do not look at the machines and the ways between them first.")
def train(
    recipe: str,
    file: Path,
    settings: tuple[str, ...],
    resume: bool,
    run: str,
    target: str,
    image: str,
    more: dict[str, str],
    no_check: bool,
) -> int:
    """Train RECIPE (a file, or the name of one that ships) on all machines of cluster.toml.

    Sends the recipe and the files that it names, starts a container on each machine, shows what all of them print, and
    ends all when one fails. The run's folder lies on the first machine, and is copied to ./runs from elsewhere.
    """
    from strix_finetune.cli.clustercheck import image_of
    from strix_finetune.cluster import prepare
    from strix_finetune.cluster.file import read
    from strix_finetune.cluster.reach import open_nodes, try_nodes
    from strix_finetune.cluster.train import train as work
    from strix_finetune.paths import find

    cluster = read(file)
    chosen = image_of(cluster, image, target)
    wanted = prepare.Wanted(recipe, settings, resume, run, more)
    folders = find(os.environ)
    facts = prepare.look_up(wanted, folders, os.environ)
    if no_check:
        with open_nodes(cluster, os.environ) as reached:
            environments = prepare.unchecked(cluster, reached)
            return work(cluster, wanted, facts, reached, environments, chosen, folders, os.environ)
    with try_nodes(cluster, os.environ) as found:
        checked = _checked(cluster, chosen, found)
        if checked is None:
            return 1
        reached, environments, gpus = checked
        return work(cluster, wanted, facts, reached, environments, chosen, folders, os.environ, gpus)


def _checked(
    cluster: Cluster, image: str, found: Sequence[Reached | Unreached]
) -> tuple[list[Reached], Environments, dict[str, int]] | None:
    """The nodes, their environments and numbers of GPUs; None where training would fail: why has been printed."""
    from strix_finetune.cluster import examine
    from strix_finetune.cluster.prepare import say
    from strix_finetune.cluster.reach import Reached

    examined = examine.look(cluster, image, found, say, quick=True)
    for finding in examined.findings:
        if finding.level != "ok":
            kind = "error" if finding.level == "failure" else "note"
            cure = f"; {finding.cure}" if finding.cure else ""
            print(f"{kind}: {finding.where}: {finding.says}{cure}", file=sys.stderr)
    if examined.failed:
        return None
    gpus = {node.name: len(node.gpus) for node in examined.found.nodes} if examined.found else {}
    return [item for item in found if isinstance(item, Reached)], examined.environments, gpus
