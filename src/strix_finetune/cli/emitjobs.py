"""emit slurm: what a cluster's scheduler runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from strix_finetune.emit import Emitted

# what of the command line of `emit` each of them makes use of, beside what every kind does
OPTIONS = {
    "slurm": frozenset(
        {
            "image",
            "name",
            "project",
            "hf_token",
            "shm",
            "rdma",
            "selinux",
            "command",
            "with_",
            "nodes",
            "gpus",
            "suffix",
        }
    ),
}
_WITH = ("podman", "apptainer", "pyxis")
_OWN = (
    click.option("--with", "with_", type=click.Choice(_WITH), help="slurm: what runs the container. Default: podman."),
    click.option("--nodes", type=click.IntRange(1), metavar="N", help="slurm: how many train together. Default: 1."),
    click.option("--gpus", type=click.IntRange(1), metavar="N", help="slurm: GPUs of a node. Default: 1."),
    click.option("--suffix", default="", metavar="-ib", help="slurm: makes a node's name that on another network."),
)
_Any = TypeVar("_Any", bound=Callable[..., Any])


def options(command: _Any) -> _Any:
    """The options that only these kinds have."""
    for option in reversed(_OWN):
        command = option(command)
    return command


def emit(kind: str, given: Mapping[str, Any]) -> int:
    """Print or write the definition. `given`: all that the command line said."""
    from strix_finetune import caches, jobs
    from strix_finetune.names import final_ref
    from strix_finetune.paths import find
    from strix_finetune.workspace import Options, open_workspace

    target = open_workspace(Options(target=given["target"], images=given["images"]), os.environ).stack.target
    project: Path = (given["project"] or Path.cwd()).absolute()
    places = {cache.name: cache.place(os.environ) for cache in caches.CACHES}
    common = {
        "image": given["image"] or final_ref(target.id),
        "name": given["name"],
        "gpu": target.spec.kind == "gpu",
        "nodes": given["nodes"] or 1,
        "processes": given["gpus"] or 1,
        "shm": given["shm"],
        "rdma": given["rdma"],
        "work": jobs.work(given["command"], project, find().recipes, places["models"]),
        "network": jobs.network(target.id, gpu=target.spec.kind == "gpu", rdma=given["rdma"]),
    }
    return _out(_slurm(common, project, given), given["output"], force=given["force"])


def _slurm(common: Mapping[str, Any], project: Path, given: Mapping[str, Any]) -> Emitted:
    from strix_finetune import caches
    from strix_finetune.paths import find
    from strix_finetune.slurm import Job, render

    token: Path | None = given["hf_token"]
    job = Job(
        **common,
        project=project,
        runtime=given["with_"] or "podman",
        suffix=given["suffix"],
        selinux=given["selinux"],
        token=str(token.absolute()) if token else "",
        moved=caches.moved(os.environ),
    )
    return render(job, find().toolbox)


def _out(made: Emitted, output: Path | None, *, force: bool) -> int:
    if output is None:
        click.echo(made.text, nl=False)
        return 0
    from strix_finetune.emitted import write

    for path in write((made,), output, force=force):
        click.echo(f"wrote {path}", err=True)
    return 0
