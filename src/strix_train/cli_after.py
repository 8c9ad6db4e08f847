"""The commands for what comes after training: export, evaluation, report. Heavy modules are imported when called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    from strix_train.origin import find
    from strix_train.quietly import quietly

    found = find(run)
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


@click.command("eval")
@click.argument("run", metavar="RUN|CHECKPOINT")
@click.option("--data", type=_PATH, help="Other rows than the recipe's evaluation rows, of any format it may have.")
@click.option("--questions", type=_PATH, help='Other questions: JSON Lines of {"prompt", "expect", "system"?}.')
@click.option("--rows", type=click.IntRange(1), help="At most so many rows.")
@click.option("--batch", type=click.IntRange(1, 4096), default=8, show_default=True, help="Rows at a time.")
@click.option("--tasks", help="Tasks of lm-eval as well, where it is installed: names with commas between them.")
@click.option("--limit", type=click.IntRange(1), help="At most so many examples of each task.")
@click.option(
    "--without/--only-with", default=True, show_default=True, help="Measure the model without its adapter too."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(
    run: str,
    data: Path | None,
    questions: Path | None,
    rows: int | None,
    batch: int,
    tasks: str | None,
    limit: int | None,
    without: bool,
    as_json: bool,
) -> int:
    """Measure a trained model on held-out rows and questions: loss, perplexity, right and exact answers."""
    import json

    from strix_train import environment, lmtasks, scorer
    from strix_train import evaluate as measuring
    from strix_train.errors import InputError, Problem
    from strix_train.origin import find, look
    from strix_train.quietly import quietly
    from strix_train.runfolder import RunFolder

    found = find(run)
    if found.run is None:
        raise InputError(Problem(f"{run} is not part of a run", cure="name the folder that `train` wrote"))
    if questions or tasks:
        scorer.refuse(found, "it can be asked no questions and no tasks")
    plan = measuring.what_to_measure(found.run, data, questions, tasks=bool(tasks))
    look(found, plan)
    environment.prepare(offline=found.base.local and not tasks)
    with quietly() as tell:
        tell("measuring …")
        before, after, answers = measuring.both(found, plan, most=rows, batch=batch, without=without)
        more: dict[str, Any] = {
            "answers": answers,
            "data": str(data) if data else None,
            "of": str(found.adapter or found.base.source),
        }
        if tasks:
            numbers = lmtasks.tasks(found, tasks.split(","), limit=limit, batch=batch)
            more |= {"tasks": numbers, "summary": {name: _in_words(each) for name, each in numbers.items()}}
    facts = measuring.as_json(before, after, more)
    RunFolder(found.run).write_json(f"evaluation-{found.part}.json" if found.part else "evaluation.json", facts)
    _renew(found.run)
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
        return 0
    for name, text in facts["summary"].items():
        click.echo(f"{name:<17} {text}")
    return 0


def _in_words(numbers: dict[str, float]) -> str:
    kept = {name.partition(",")[0]: value for name, value in numbers.items() if "stderr" not in name}
    return ", ".join(f"{name} {value:.4f}" for name, value in kept.items() if name != "sample_len")
