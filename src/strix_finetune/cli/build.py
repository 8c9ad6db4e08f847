"""plan, build, render, smoke."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strix_finetune.cli import several
from strix_finetune.cli.options import F, image_options, json_option
from strix_finetune.workspace import Options, Workspace

if TYPE_CHECKING:
    from strix_finetune.builder import BuildOptions, Planned
    from strix_finetune.engine.base import Engine
    from strix_finetune.events import Emit
    from strix_finetune.registry.reuse import Source


def _inputs(command: F) -> F:
    """--locked, --offline and --from: where a build takes what it needs."""
    for option in (
        click.option(
            "--from", "source", default="", metavar="REGISTRY", help="Pull layers that REGISTRY has under their key."
        ),
        click.option(
            "--offline",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Take every input from DIR, which 'vendor DIR' made; no network is touched.",
        ),
        click.option(
            "--locked", is_flag=True, help="Refuse instead of locking anew what the archive no longer serves."
        ),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("layers", nargs=-1)
@image_options
@json_option
@_inputs
def plan(
    layers: tuple[str, ...],
    options: Options,
    as_json: bool,
    locked: bool,
    offline: Path | None,
    source: str,
) -> int:
    """Show what a build would do with each layer, and why. Without LAYERS: the whole stack."""
    from strix_finetune.builder import BuildOptions, Reporter, announce
    from strix_finetune.engine.select import connect
    from strix_finetune.ui import make_view
    from strix_finetune.workspace import open_workspace

    if each := several.several(options):
        return several.plan(each, layers, offline, source, locked=locked, as_json=as_json)
    workspace = open_workspace(options, os.environ)
    engine = connect(options.engine, os.environ)  # type: ignore[arg-type]
    view = make_view(json=as_json)
    try:
        report = Reporter(view)
        build_options = BuildOptions(layers, locked=locked, source=source_of(source, workspace, options, report))
        made = planned(workspace, engine, build_options, report, options, offline)
        announce(made.plan, report)
    finally:
        view.close()
        engine.close()
    return 0


@click.command()
@click.argument("layers", nargs=-1)
@image_options
@json_option
@click.option("--jobs", "-j", type=click.IntRange(1, 64), default=2, show_default=True, help="Layers built at once.")
@click.option("--rebuild", is_flag=True, help="Build the named layers even when they are up to date.")
@_inputs
@click.option("--dry-run", is_flag=True, help="The same as plan.")
@click.pass_context
def build(
    context: click.Context,
    layers: tuple[str, ...],
    options: Options,
    as_json: bool,
    jobs: int,
    locked: bool,
    rebuild: bool,
    offline: Path | None,
    source: str,
    dry_run: bool,
) -> int:
    """Build LAYERS (default: the whole stack) that are not up to date, smoke-test them, and move their tags."""
    from strix_finetune import graph
    from strix_finetune.builder import BuildOptions, Reporter, run_build
    from strix_finetune.cli.memo import remember_outcome
    from strix_finetune.engine.select import connect
    from strix_finetune.execute import Blocked, Failed
    from strix_finetune.logs import LayerLogs
    from strix_finetune.requests import log_folder
    from strix_finetune.ui import make_view
    from strix_finetune.workspace import open_workspace

    if dry_run:
        how = {"locked": locked, "offline": offline, "source": source}
        code: int = context.invoke(plan, layers=layers, as_json=as_json, **how, **spread(options))
        return code
    if each := several.several(options):
        return several.build(each, layers, offline, source, jobs=jobs, rebuild=rebuild, locked=locked, as_json=as_json)
    workspace = open_workspace(options, os.environ)
    engine = connect(options.engine, os.environ)  # type: ignore[arg-type]
    view = make_view(json=as_json)
    logs = LayerLogs(log_folder(workspace))
    try:
        report = Reporter(view, logs)
        reaped = engine.reap("io.strix-finetune.pid")
        if reaped:
            from strix_finetune.events import Notice

            report(Notice(f"removed {reaped} container{'s' * (reaped > 1)} that an earlier run had left"))
        registry = source_of(source, workspace, options, report)
        build_options = BuildOptions(layers, jobs, locked, rebuild, registry)
        made = planned(workspace, engine, build_options, report, options, offline)
        outcomes = run_build(made, workspace, engine, build_options, report)
    finally:
        view.close()
        logs.close()
        engine.close()
    failed = any(isinstance(outcome, Failed | Blocked) for outcome in outcomes.values())
    if not failed and not rebuild:
        wanted = graph.wanted(workspace.stack, layers)
        remember_outcome(made.plan, outcomes, wanted, workspace, options, as_json)
    return 1 if failed else 0


def source_of(address: str, workspace: Workspace, options: Options, emit: Emit) -> Source | None:
    """The registry whose layers are taken instead of built."""
    if not address:
        return None
    from strix_finetune.cli.registry import open_registry, required_keys
    from strix_finetune.registry.reuse import Source

    registry = open_registry(address, options, emit)
    return Source(registry, workspace.stack.target.id, workspace.folders.cache / "pulls", emit, required_keys())


def planned(
    workspace: Workspace,
    engine: Engine,
    how: BuildOptions,
    report: Emit,
    options: Options,
    offline: Path | None,
) -> Planned:
    """The plan of a build, from a vendored folder where there is one."""
    from strix_finetune.builder import make_build_plan, make_vendored_plan

    if offline is None:
        return make_build_plan(workspace, engine, how, report, os.environ, options.network)
    return make_vendored_plan(workspace, engine, how, offline, report)


@click.command()
@click.argument("layers", nargs=-1)
@image_options
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write <layer>/Dockerfile below this folder.")
def render(layers: tuple[str, ...], options: Options, output: Path | None) -> int:
    """Print the rendered Dockerfiles of LAYERS (default: all of the stack); nothing is built."""
    from strix_finetune import graph
    from strix_finetune.workspace import open_workspace

    workspace = open_workspace(options, os.environ)
    lock = workspace.need_lock()
    chosen = set(graph.wanted(workspace.stack, layers) if layers else [node.name for node in workspace.stack.nodes])
    for keyed in workspace.render(lock):
        if keyed.name not in chosen:
            continue
        if output:
            folder = output / keyed.name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "Dockerfile").write_text(keyed.layer.dockerfile, "utf-8")
        else:
            click.echo(f"# {keyed.name}, key {keyed.key[:12]}\n{keyed.layer.dockerfile}")
    return 0


@click.command()
@click.argument("layers", nargs=-1)
@image_options
@json_option
def smoke(layers: tuple[str, ...], options: Options, as_json: bool) -> int:
    """Run the smoke tests of LAYERS (default: all of the stack) in fresh containers of their present images."""
    from strix_finetune import graph, netconf
    from strix_finetune.builder import Reporter, make_offline_plan, record_smoke
    from strix_finetune.engine.select import connect
    from strix_finetune.errors import SmokeFailed, WorkError
    from strix_finetune.plan import Reuse
    from strix_finetune.requests import Requests
    from strix_finetune.ui import make_view
    from strix_finetune.workspace import open_workspace

    workspace = open_workspace(options, os.environ)
    engine = connect(options.engine, os.environ)  # type: ignore[arg-type]
    view = make_view(json=as_json)
    failures = []
    try:
        report = Reporter(view)
        made, lock = make_offline_plan(workspace, engine)
        requests = Requests(workspace, lock, netconf.NetSettings(), engine)
        names = graph.wanted(workspace.stack, layers) if layers else tuple(step.name for step in made.steps)
        for name in names:
            step = made.step(name)
            if not isinstance(step.action, Reuse):
                if layers:
                    raise WorkError(
                        f"'{name}' has no up-to-date image to test", cure=f"run 'strix-finetune build {name}'"
                    )
                continue
            try:
                image = step.action.image
                record_smoke(workspace, step, image, requests.smoke(step, image, report))
            except SmokeFailed as error:
                failures.append(error)
    finally:
        view.close()
        engine.close()
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures else 0


def spread(options: Options) -> dict[str, object]:
    """The options as the command line gave them, for calling a sister command."""
    return {
        "target": options.target,
        "channel": options.channel,
        "engine": options.engine,
        "override": options.override,
        "images": options.images,
        "debian_mirror": options.network.debian_mirror,
        "ca_bundle": options.network.ca_bundle,
        "wheels": options.network.wheels,
        "index": options.network.indexes,
    }
