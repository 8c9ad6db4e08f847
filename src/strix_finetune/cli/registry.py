"""push, pull: tested images to and from a registry."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strix_finetune.cli.options import image_options, json_option
from strix_finetune.workspace import Options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from strix_finetune.events import Emit
    from strix_finetune.oci.descriptor import Packed
    from strix_finetune.registry.client import Registry
    from strix_finetune.supply.keyring import Trusted
    from strix_finetune.workspace import Workspace

VARIABLE = "STRIX_REGISTRY"
_file = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("wanted", required=False, default="", metavar="[TARGET]")
@click.option(
    "--to", "address", envvar=VARIABLE, default="", metavar="REGISTRY", help=f"HOST[:PORT]/NAME. Default: ${VARIABLE}."
)
@click.option("--builders", is_flag=True, help="Also push the layers that are only built with.")
@click.option("--force", is_flag=True, help="Take names over from the release of another channel.")
@image_options
@json_option
def push(wanted: str, address: str, builders: bool, force: bool, options: Options, as_json: bool) -> int:
    """Push the image of TARGET and the layers that it stands on, if their tests passed, by key and by name."""
    from datetime import UTC, datetime

    from strix_finetune.builder import Reporter, make_offline_plan
    from strix_finetune.engine.select import connect
    from strix_finetune.registry.push import Push, groups_of
    from strix_finetune.ui import make_view
    from strix_finetune.workspace import open_workspace

    options = _with_target(options, wanted)
    if not address:
        raise _no_address("--to")
    workspace = open_workspace(options, os.environ)
    engine = connect(options.engine, os.environ)  # type: ignore[arg-type]
    view = make_view(json=as_json)
    try:
        report = Reporter(view)
        registry = open_registry(address, options, report)
        plan, lock = make_offline_plan(workspace, engine)
        groups = groups_of(plan, report, builders=builders)

        def pack(images: Sequence[str], folder: Path) -> Mapping[str, Packed]:
            from strix_finetune.events import Notice
            from strix_finetune.oci.layout import export, groups_of, lock_epoch
            from strix_finetune.oci.memory import Memory

            *parents, image = images
            said = export(
                engine,
                image,
                parents,
                folder,
                epoch=lock_epoch(lock),
                groups=groups_of(workspace.stack),
                memory=Memory(workspace.folders.cache / "packed", registry.has),
                tell=lambda text: report(Notice(text)),
            )
            return said.packed

        result = Push(
            registry=registry,
            engine=engine,
            stack=workspace.stack,
            state=workspace.folders.state,
            cache=workspace.folders.cache,
            pack=pack,
            emit=report,
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            revision=_revision(workspace),
            default=workspace.stack.target.id == workspace.project.default_target,
            force=force,
        ).run(groups)
    finally:
        view.close()
        engine.close()
    if not as_json:
        for tag in result.tags:
            click.echo(f"{result.repository}:{tag}@{result.digest}")
    return 0


@click.command()
@click.argument("wanted", required=False, default="", metavar="[TARGET]")
@click.option(
    "--from",
    "address",
    envvar=VARIABLE,
    default="",
    metavar="REGISTRY",
    help=f"HOST[:PORT]/NAME. Default: ${VARIABLE}.",
)
@click.option("--tag", default="", metavar="NAME", help="A name or digest of a release. Default: the target's newest.")
@click.option("--key", "keys", type=_file, multiple=True, help="Only what this public key has signed; may be repeated.")
@image_options
@json_option
def pull(wanted: str, address: str, tag: str, keys: tuple[Path, ...], options: Options, as_json: bool) -> int:
    """Pull the image of TARGET (default: the GPU found), check it, and name it as if it had been built here.

    Where keys lie in the folder trusted/ of your settings, only what one of them has signed is taken.
    """
    from strix_finetune.builder import Reporter
    from strix_finetune.engine.select import connect
    from strix_finetune.registry import pull as pulling
    from strix_finetune.ui import make_view
    from strix_finetune.workspace import open_workspace

    options = _with_target(options, wanted)
    if not address:
        raise _no_address("--from")
    workspace = open_workspace(options, os.environ)
    target = workspace.stack.target.id
    engine = connect(options.engine, os.environ)  # type: ignore[arg-type]
    view = make_view(json=as_json)
    try:
        report = Reporter(view)
        registry = open_registry(address, options, report)
        found = pulling.find(registry, tag or target, target, workspace.project.targets)
        folder = workspace.folders.cache / "pulls"
        result = pulling.pull(engine, registry, found, target, folder, report, required_keys(keys))
    finally:
        view.close()
        engine.close()
    if not as_json:
        click.echo(f"{result.image}, key {result.key[:12]}")
    return 0


def open_registry(address: str, options: Options, emit: Emit) -> Registry:
    """The repository of an address, with this host's network settings and its engine's logins."""
    from strix_finetune import netconf
    from strix_finetune.events import Notice
    from strix_finetune.registry import client, repository

    settings = netconf.collect(os.environ, options.network)
    return client.connect(repository.parse(address), settings, os.environ, say=lambda text: emit(Notice(text)))


def required_keys(given: Sequence[Path] = ()) -> Sequence[Trusted] | None:
    """The public keys of which one must have signed what is pulled: those given, else those that the user laid into
    trusted/; None where there are none of either."""
    from strix_finetune import paths
    from strix_finetune.supply import keyring

    folder = paths.config(os.environ)
    others = sorted((folder / keyring.TRUSTED).glob("*.pub"))
    return keyring.trusted(folder, given) if given or others else None


def _with_target(options: Options, target: str) -> Options:
    from strix_finetune.errors import InputError

    if target and options.target and target != options.target:
        raise InputError(f"both {target} and --target {options.target} are named", cure="name one target")
    return replace(options, target=target or options.target)


def _no_address(option: str) -> Exception:
    from strix_finetune.errors import InputError

    return InputError("no registry is named", cure=f"add {option} HOST/NAME, or set {VARIABLE}")


def _revision(workspace: Workspace) -> str:
    """The commit that the definitions are of; empty where they are not a checkout, or somebody changed them."""
    import subprocess

    folder = str(workspace.folders.images)
    try:
        done = subprocess.run(
            ["git", "-C", folder, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return "" if done.stdout.strip().endswith("-dirty") else done.stdout.strip()
