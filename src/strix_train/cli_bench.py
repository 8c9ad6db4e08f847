"""The command that measures this machine. Heavy modules are imported when called."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--adapters", default="full,lora,lora8bit,qlora", show_default=True, help="Columns of the table.")
@click.option("--backends", default="unsloth,hf", show_default=True, help="Rows of each model.")
@click.option("--batch", type=click.IntRange(1, 4096), default=4, show_default=True, help="Rows of a pass.")
@click.option("--accumulation", type=click.IntRange(1), default=1, show_default=True, help="Passes of a step.")
@click.option("--length", type=click.IntRange(8), default=512, show_default=True, help="Tokens of a row; all are full.")
@click.option("--steps", type=click.IntRange(1), default=13, show_default=True, help="Of each cell; 3 are not counted.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a key of every cell's recipe.")
@click.option("--limit", type=click.FloatRange(1), default=3600.0, show_default=True, help="Seconds of a cell at most.")
@click.option("--anyway", is_flag=True, help="Also run what does not fit by its estimate.")
@click.option("--to", type=click.Path(path_type=Path), help="Folder to make (default: bench-TIME).")
def bench(
    models: tuple[str, ...],
    adapters: str,
    backends: str,
    batch: int,
    accumulation: int,
    length: int,
    steps: int,
    settings: tuple[str, ...],
    limit: float,
    anyway: bool,
    to: Path | None,
) -> int:
    """Measure step time, peak memory and tokens per second of MODEL with each adapter on each backend.

    A model is a folder, a hub id or a bare name. Each cell is a process of its own that really trains on made-up text.
    """
    from strix_train.benchmark import cells, command

    return command.run(
        models,
        adapters=command.words(adapters, cells.ADAPTERS, "adapter"),
        backends=command.words(backends, cells.BACKENDS, "backend"),
        size=cells.Size(batch, accumulation, length, steps),
        settings=settings,
        folder=to,
        limit=limit,
        anyway=anyway,
        tell=click.echo,
    )
