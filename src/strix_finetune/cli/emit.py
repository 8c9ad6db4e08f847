"""emit: definitions for other tools that run the image."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from strix_finetune.cli import emitjobs

_KINDS = (
    "distrobox",
    "quadlet",
    "compose",
    "devcontainer",
    "docker",
    "podman",
    "udev",
    "modprobe",
    "wsl",
    "toolbox",
    "bake",
    "actions",
    "slurm",
    "kubernetes",
)
_WITH_DEVICES = ("quadlet", "compose", "devcontainer", "docker", "podman")


@click.command(context_settings={"allow_interspersed_args": True})
@click.argument("kind", type=click.Choice(_KINDS))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--target",
    "-t",
    default="",
    metavar="GFX",
    help="GPU target, or cpu; bake, actions: also several, with commas between them. Default: the GPU found.",
)
@click.option("--channel", "-c", default="", metavar="NAME", help="bake, actions: set of sources.")
@click.option("--to", default="", metavar="HOST/NAME", help="actions: the registry. Default: the forge's own.")
@click.option("--runner", default="", metavar="LABELS", help="actions: labels of the machines, by commas.")
@click.option("--images", type=click.Path(path_type=Path), help="Folder of layer definitions.")
@click.option("--image", default="", metavar="REF", help="Another image than the one that is built here.")
@click.option("--name", default="strix-finetune", show_default=True, help="Name of the container or service.")
@click.option("--engine", type=click.Choice(["docker", "podman"]), default="docker", show_default=True)
@click.option("--device", multiple=True, metavar="FILE", help="Device file; again for more. Default: all GPUs.")
@click.option("--group", multiple=True, type=click.IntRange(1), metavar="GID", help="Group of the device files.")
@click.option("--user", default="", metavar="UID:GID", help="Whose the outputs are. Default: yours.")
@click.option("--project", type=click.Path(path_type=Path), help="Folder that is mounted. Default: the current one.")
@click.option("--hf-token", type=click.Path(path_type=Path), metavar="FILE", help="File with the hub's token.")
@click.option("--shm", type=click.IntRange(1), default=8, show_default=True, metavar="GIB", help="Size of /dev/shm.")
@click.option("--rdma", is_flag=True, help="InfiniBand or RoCE: its devices, locked memory, the host's network.")
@click.option("--selinux", is_flag=True, help="For a host with SELinux: no label, so that devices can be opened.")
@click.option(
    "--access",
    type=click.Choice(["group", "seat", "everybody"]),
    default="group",
    show_default=True,
    help="udev: who may use the GPU.",
)
@click.option("--gtt", type=click.IntRange(1), metavar="GIB", help="modprobe: what the GPU may map of the memory.")
@click.option("--module", type=click.Choice(["ttm", "amdttm"]), default="ttm", show_default=True, help="modprobe.")
@emitjobs.options
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Write FILE, or into a folder.")
@click.option("--force", is_flag=True, help="Overwrite a file that was not made here, or was edited since.")
@click.pass_context
def emit(
    ctx: click.Context,
    /,
    kind: str,
    command: tuple[str, ...],
    target: str,
    channel: str,
    to: str,
    runner: str,
    images: Path | None,
    image: str,
    name: str,
    engine: str,
    device: tuple[str, ...],
    group: tuple[int, ...],
    user: str,
    project: Path | None,
    hf_token: Path | None,
    shm: int,
    rdma: bool,
    selinux: bool,
    access: str,
    gtt: int | None,
    module: str,
    output: Path | None,
    force: bool,
    **jobs: Any,
) -> int:
    """Print or write a definition for KIND. COMMAND is what it runs when it is not told otherwise.

    See docs/containers.md for what each of them is, and what its flags are for. Of several machines it is
    docs/clusters.md that tells.
    """
    import re

    from strix_finetune import caches, hostgpu, names
    from strix_finetune.cli import emitbuilds
    from strix_finetune.cli.emitout import out
    from strix_finetune.emit import KINDS, Values, render
    from strix_finetune.errors import InputError
    from strix_finetune.paths import find
    from strix_finetune.workspace import Options, open_workspace

    usable = {name: known.options for name, known in KINDS.items()} | emitbuilds.OPTIONS | emitjobs.OPTIONS
    given = [
        parameter
        for parameter in sorted(set().union(*usable.values()))
        if ctx.get_parameter_source(parameter) is ParameterSource.COMMANDLINE and ctx.params[parameter]
    ]
    for parameter in given:
        if parameter not in usable[kind]:
            said = "a command" if parameter == "command" else f"--{parameter.replace('_', '-')}"
            raise InputError(f"{said} means nothing for {kind}", cure="leave it out")
    if kind in emitbuilds.OPTIONS:
        targets = tuple(dict.fromkeys(target.split(",")))
        if kind == "bake":
            return emitbuilds.bake(targets, channel, images, output, force=force)
        return emitbuilds.actions(targets, channel, images, output, to, runner, force=force)
    if hf_token and not hf_token.is_file():
        raise InputError(f"there is no file {hf_token}", cure="write the token into it, readable by you alone")
    if kind in emitjobs.OPTIONS:
        return emitjobs.emit(kind, ctx.params)
    if kind == "quadlet" and output and not output.is_dir():
        # units name each other by their files
        if "name" in given and name != output.stem:
            raise InputError(f"the unit in {output} would be called {output.stem}", cure=f"leave --name {name} out")
        name = output.stem
    if user and not re.fullmatch(r"\d+:\d+", user):
        raise InputError(f"--user cannot be '{user}'", cure="give numbers, UID:GID")
    if kind in ("compose", "devcontainer") and engine == "podman" and group:
        raise InputError("--group means nothing for rootless Podman", cure="leave it out: your own groups are kept")

    chosen = open_workspace(Options(target=target, images=images), os.environ).stack.target
    gpu = chosen.spec.kind == "gpu"
    groups = tuple(str(number) for number in group)
    if gpu and not device and kind in _WITH_DEVICES:
        there = hostgpu.gpus()
        chosen_gpus = hostgpu.choose(there, chosen.id)
        if len(chosen_gpus) < len(there):
            # a GPU of another kind beside it stays hidden, as in the launcher
            device = hostgpu.devices(chosen=chosen_gpus)
    if gpu and not groups and kind in ("compose", "devcontainer"):
        # a definition that lies in a file cannot ask for them later
        groups = hostgpu.groups(hostgpu.devices())
    where = project.absolute() if project else Path.cwd() if kind == "quadlet" else None
    who = user or (f"{os.getuid()}:{os.getgid()}" if kind in ("compose", "devcontainer") else "")
    values = Values(
        image=image or names.final_ref(chosen.id),
        name=name,
        gpu=gpu,
        engine=kind if kind in ("docker", "podman") else engine,
        devices=device,
        groups=groups,
        user=who,
        project=str(where) if where else "",
        token=str(hf_token.absolute()) if hf_token else "",
        moved=caches.moved(os.environ),
        shm=shm,
        rdma=rdma,
        selinux=selinux,
        command=command,
        access=access,
        gtt=gtt or 0,
        module=module,
    )
    made = render(kind, values, find().toolbox)
    return out(made, output, force=force)
