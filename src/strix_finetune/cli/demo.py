"""demo: from nothing to a fine-tuned model, with what it took."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import click

from strix_finetune.cli.options import image_options
from strix_finetune.workspace import Options


@click.command()
@image_options
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where the run goes. Default: runs/demo-<time>.")
@click.pass_context
def demo(context: click.Context, options: Options, run_dir: Path | None) -> int:
    """Build the images, fetch a small real model, fine-tune it in the container, and compare its answers.

    Without --override the images are built by the profile "training", whose RCCL has what a training run calls and
    is compiled in minutes.
    """
    from strix_finetune.cli.build import build, spread
    from strix_finetune.cli.fetch import fetch_demo
    from strix_finetune.cli.run import train_in_image

    options = _quick(options)
    times: list[tuple[str, float]] = []

    def timed(what: str, began: float) -> None:
        times.append((what, time.monotonic() - began))

    began = time.monotonic()
    code: int = context.invoke(
        build, layers=(), as_json=False, jobs=2, locked=False, rebuild=False, dry_run=False, **spread(options)
    )
    timed("images", began)
    if code:
        return code
    began = time.monotonic()
    context.invoke(fetch_demo, **spread(options))
    timed("model", began)
    run = run_dir or Path("runs", time.strftime("demo-%Y%m%d-%H%M%S"))
    began = time.monotonic()
    code = train_in_image(options, ["demo", "--run-dir", str(run)])
    timed("training", began)
    if code:
        return code
    return _report(run, options, times)


def _quick(options: Options) -> Options:
    """The options with the shipped profile "training", where the user has no override and the definitions have it."""
    from strix_finetune.paths import find

    profile = (options.images or find(os.environ).images) / "profiles" / "training"
    return options if options.override or not profile.is_dir() else replace(options, override=profile)


def _report(run: Path, options: Options, times: list[tuple[str, float]]) -> int:
    from strix_finetune.cli.images import images
    from strix_finetune.errors import WorkError

    report = json.loads((run / "report.json").read_text("utf-8"))
    before, after, total = (report["questions"][name] for name in ("before", "after", "of"))
    click.echo(f"\nheld-out questions answered right: {before} of {total} before, {after} of {total} after")
    click.echo(f"loss curve: {run / 'loss.png'}")
    click.echo(f"adapter:    {run / 'adapter'}\n")
    sys.stdout.flush()
    click.get_current_context().invoke(images, engine=options.engine)
    click.echo(
        "\ntime: " + ", ".join(f"{what} {seconds:.0f} s" for what, seconds in times) + f" (on {os.cpu_count()} cores)"
    )
    if after < total:
        raise WorkError(
            f"the fine-tuned model answered only {after} of {total} held-out questions",
            cure=f"look at {run / 'answers.jsonl'} and {run / 'loss.png'}",
        )
    return 0
