"""emit slurm and emit kubernetes: what a cluster's scheduler runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from strix_finetune.emit import Emitted

# what of the command line of `emit` each of them makes use of, beside what every kind does
_BOTH = {"image", "name", "project", "shm", "command", "with_", "nodes", "gpus", "env"}
_CLAIM = {"claim", "storage", "storage_class", "secret", "node_label", "adapter", "restarts"}
OPTIONS = {
    "slurm": frozenset({*_BOTH, "hf_token", "rdma", "selinux", "suffix"}),
    "kubernetes": frozenset({*_BOTH, "user", "group", *_CLAIM}),
}
_WITH = {"slurm": ("podman", "apptainer", "pyxis"), "kubernetes": ("trainjob", "jobset")}
_OWN = (
    click.option(
        "--with",
        "with_",
        type=click.Choice([each for many in _WITH.values() for each in many]),
        help="What runs it: slurm: podman (default), apptainer, pyxis; kubernetes: trainjob (default), jobset.",
    ),
    click.option("--nodes", type=click.IntRange(1), metavar="N", help="slurm, kubernetes: how many train together."),
    click.option("--gpus", type=click.IntRange(1), metavar="N", help="slurm, kubernetes: GPUs of a node. Default: 1."),
    click.option("--env", multiple=True, metavar="NAME=VALUE", help="slurm, kubernetes: a variable; again for more."),
    click.option("--suffix", default="", metavar="-ib", help="slurm: makes a node's name that on another network."),
    click.option("--claim", default="", metavar="NAME", help="kubernetes: an existing claim for runs and caches."),
    click.option("--storage", default="100Gi", metavar="SIZE", help="kubernetes: of the claim that is made."),
    click.option(
        "--storage-class", default="", metavar="NAME", help="kubernetes: of the claim. Default: the cluster's."
    ),
    click.option(
        "--secret", default="", metavar="NAME", help="kubernetes: a secret with the hub's token, key 'token'."
    ),
    click.option(
        "--node-label", multiple=True, metavar="LABEL=VALUE", help="kubernetes: of the nodes; again for more."
    ),
    click.option("--adapter", default="", metavar="RESOURCE", help="kubernetes: an RDMA device, like rdma/hca_shared."),
    click.option("--restarts", type=click.IntRange(0), default=3, help="kubernetes: from the newest checkpoint."),
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
    from strix_finetune.cli.emitout import out
    from strix_finetune.errors import InputError
    from strix_finetune.names import final_ref
    from strix_finetune.paths import find
    from strix_finetune.workspace import Options, open_workspace

    way = given["with_"] or _WITH[kind][0]
    if way not in _WITH[kind]:
        raise InputError(f"{kind} does not run things with {way}", cure=f"take {' or '.join(_WITH[kind])}")
    target = open_workspace(Options(target=given["target"], images=given["images"]), os.environ).stack.target
    gpu = target.spec.kind == "gpu"
    project: Path = (given["project"] or Path.cwd()).absolute()
    places = {cache.name: cache.place(os.environ) for cache in caches.CACHES}
    common = {
        "image": given["image"] or final_ref(target.id),
        "name": given["name"],
        "gpu": gpu,
        "nodes": given["nodes"] or 1,
        "processes": given["gpus"] or 1,
        "shm": given["shm"],
        "project": project,
        "work": jobs.work(given["command"], project, find().recipes, places["models"]),
        "variables": {
            **jobs.network(target.id, gpu=gpu, rdma=given["rdma"] or bool(given["adapter"])),
            **jobs.variables(given["env"]),
        },
    }
    made = _slurm(common, way, given) if kind == "slurm" else _kubernetes(common, way, given)
    return out((made,), given["output"], force=given["force"])


def _slurm(common: Mapping[str, Any], way: str, given: Mapping[str, Any]) -> Emitted:
    from strix_finetune import caches
    from strix_finetune.paths import find
    from strix_finetune.slurm import Job, render

    token: Path | None = given["hf_token"]
    job = Job(
        **common,
        runtime=way,
        rdma=given["rdma"],
        suffix=given["suffix"],
        selinux=given["selinux"],
        token=str(token.absolute()) if token else "",
        moved=caches.moved(os.environ),
    )
    return render(job, find().toolbox)


def _kubernetes(common: Mapping[str, Any], way: str, given: Mapping[str, Any]) -> Emitted:
    from strix_finetune.kubernetes import Job, render
    from strix_finetune.paths import find

    job = Job(
        **common,
        kind=way,
        user=given["user"] or "1000:1000",
        groups=given["group"],
        labels=given["node_label"],
        **{name: given[name] for name in ("claim", "storage", "storage_class", "secret", "adapter", "restarts")},
    )
    return render(job, find().toolbox)
