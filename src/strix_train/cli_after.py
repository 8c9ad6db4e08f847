"""The commands for what comes after training: export, evaluation, report. Heavy modules are imported when called."""

from __future__ import annotations

from pathlib import Path

import click

from strix_train.export import KINDS, QUANTIZATIONS, Kind, Quantization

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("run", metavar="RUN|CHECKPOINT|ADAPTER")
@click.option("--as", "kind", type=click.Choice(KINDS), required=True, help="What to make.")
@click.option("--quant", type=click.Choice(QUANTIZATIONS), default="q8_0", show_default=True, help="Of the GGUF file.")
@click.option("--to", type=_PATH, help="Folder to make (default: in the run's export folder).")
@click.option("--check/--no-check", default=True, show_default=True, help="Compare the result with the trained model.")
def export(run: str, kind: Kind, quant: Quantization, to: Path | None, check: bool) -> int:
    """Make something of a trained model that other programs take.

    \b
    adapter   the adapter alone, its model named as the recipe names it
    merged    a model folder with the adapter in its weights, in the model's own number format
    gguf      one file for llama.cpp and Ollama, with a Modelfile beside it
    """
    from strix_train import environment
    from strix_train.export import tools
    from strix_train.export.work import Wish, default_target
    from strix_train.export.work import export as work
    from strix_train.generate import find_source
    from strix_train.quietly import quietly

    found = find_source(run)
    if kind == "gguf":
        tools.find(quant)
    wish = Wish(found, kind, quant, to or default_target(found, kind, quant), check)
    environment.prepare(offline=found.base.local)
    with quietly() as tell:
        made = work(wish, tell)
    for name, size in made.files.items():
        if name.endswith((".gguf", ".safetensors", "Modelfile")):
            click.echo(f"{made.folder / name}  {size / 1e6:.1f} MB")
    if made.comparison:
        click.echo(str(made.comparison))
    if found.run:
        _renew(found.run)
    return 0


@click.command()
@click.argument("run", type=_PATH)
@click.option("--to", type=_PATH, help="File to write (default: report.html in the run's folder).")
def report(run: Path, to: Path | None) -> int:
    """Write one page about a run: curves, samples, answers, exports, recipe. It needs no network to be read."""
    from strix_train.report.page import write

    click.echo(str(write(run, to)))
    return 0


def _renew(run: Path) -> None:
    """Write the run's page again where it has one, since there is more to tell."""
    from strix_train.report.page import write

    if (run / "report.html").is_file():
        write(run)
