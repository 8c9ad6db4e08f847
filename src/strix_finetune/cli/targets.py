"""targets: the GPUs that there are images for."""

from __future__ import annotations

import json
from pathlib import Path

import click

from strix_finetune.cli.options import json_option


@click.command()
@click.option("--images", type=click.Path(path_type=Path), help="Folder of layer definitions.")
@json_option
def targets(images: Path | None, as_json: bool) -> int:
    """List the GPU targets, the products behind them, and what does not exist for them."""
    from strix_finetune.hostgpu import found
    from strix_finetune.load import load
    from strix_finetune.paths import find

    project = load(images or find().images)
    present = set(found())
    if as_json:
        rows = {
            name: {**target.spec.model_dump(), "present": name in present} for name, target in project.targets.items()
        }
        click.echo(json.dumps({"default": project.default_target, "targets": rows}, indent=1))
        return 0
    for name, target in project.targets.items():
        spec = target.spec
        marks = " (default)" * (name == project.default_target) + " (in this machine)" * (name in present)
        click.echo(f"{name}{marks}: {', '.join(spec.products) or spec.family}")
        if spec.excluded:
            click.echo(f"    excluded: {spec.excluded}")
        for part, reason in spec.missing.items():
            click.echo(f"    no {part}: {reason}")
        for problem in spec.problems:
            click.echo(f"    note: {problem}")
    return 0
