"""The command line of `train`. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from strix_train import __version__
from strix_train.cli_after import evaluate, export, report
from strix_train.cli_bench import bench

_PATH = click.Path(path_type=Path)


def _whole(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """Return the words of an option. Raises InputError where they are no text: another encoding's, say."""
    from strix_train.errors import InputError, Problem

    try:
        "".join(value if isinstance(value, tuple) else [value or ""]).encode()
    except UnicodeEncodeError:
        what = f"{option.opts[-1]} is no UTF-8"
        raise InputError(Problem(what, cure="let the terminal, or the script, have that encoding")) from None
    return value


class Train(click.Group):
    """A group whose first word may be a recipe: `train recipe.yaml` is `train run recipe.yaml`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command in front where no command is named."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h", "--version"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=Train, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="strix-train")
def cli() -> None:
    """Fine-tune a language model by a recipe.

    \b
    train RECIPE                 train; the same as `train run RECIPE`
    train check RECIPE           look for faults in recipe and data, loading nothing heavy
    train estimate RECIPE        memory and time that it would take, on this device or another
    train bench MODEL            step time and memory of adapters and backends, on this device
    train schema                 the JSON schema of recipes, for editors
    train generate RUN -p "…"    ask the trained model
    train chat RUN               talk with it
    train eval RUN               measure it on held-out rows and questions
    train export RUN --as gguf   make a file for llama.cpp and Ollama; also adapter, merged
    train report RUN             one page about a run

    A recipe is a YAML file, or the name of one that `train recipes` lists.
    """


@cli.command()
@click.argument("recipe")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a key, e.g. schedule.steps=100.")
@click.option("--dry-run", "dry", is_flag=True, help="Check everything and show what would be done.")
@click.option("--run-dir", type=_PATH, help="Folder of this run (default: OUTPUT/RECIPE-TIME).")
@click.option("--resume", is_flag=True, help="Go on from the newest whole checkpoint of an unfinished run.")
def run(recipe: str, settings: tuple[str, ...], dry: bool, run_dir: Path | None, resume: bool) -> int:
    """Train by RECIPE."""
    from strix_train.run import run as work

    return work(recipe, settings, dry=dry, run_dir=run_dir, resume=resume)


@cli.command()
@click.argument("recipe")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a key.")
@click.option("--fetch", is_flag=True, help="Fetch sets of rows from the hub, to look at them, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, faults included.")
def check(recipe: str, settings: tuple[str, ...], fetch: bool, as_json: bool) -> int:
    """Check RECIPE and its data; nothing heavy is loaded and nothing is written."""
    from strix_train.checking import check as work

    code, text = work(recipe, settings, fetch=fetch, as_json=as_json)
    click.echo(text)
    return code


@cli.command()
@click.argument("recipe")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a key.")
@click.option("--device", default="here", show_default=True, help="here, cpu, strix-halo, h200, …, or a size: 24GiB.")
@click.option("--nodes", type=click.IntRange(1, 64), default=1, show_default=True, help="Machines that share the work.")
@click.option("--link", help="Between them: 2.5gbe, 10gbe, thunderbolt, roce, …, or as measured, GBIT:US as 9.4:60.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document; sizes in bytes.")
def estimate(recipe: str, settings: tuple[str, ...], device: str, nodes: int, link: str | None, as_json: bool) -> int:
    """Tell what memory and time RECIPE takes, and what to change where it does not fit; exit code 1 then."""
    from strix_train.estimate.command import run as work

    code, text = work(recipe, settings, device=device, as_json=as_json, count=nodes, link=link)
    click.echo(text)
    return code


@cli.command()
def schema() -> int:
    """Print the JSON schema of recipes, for editors."""
    from strix_train.recipe.jsonschema import text

    click.echo(text(), nl=False)
    return 0


@cli.command()
@click.argument("source", metavar="RUN|MODEL")
@click.option(
    "-p", "--prompt", "prompts", multiple=True, callback=_whole, help="A question; may be given several times."
)
@click.option("--prompts", "file", type=_PATH, help='JSONL file of {"prompt", "expect"?, "system"?}.')
@click.option("--system", callback=_whole, help="System message for every --prompt.")
@click.option("--max-new-tokens", type=click.IntRange(1, 32768), default=256, show_default=True)
@click.option("--temperature", type=click.FloatRange(0.0, 5.0), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the sampling.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def generate(
    source: str,
    prompts: tuple[str, ...],
    file: Path | None,
    system: str | None,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    as_json: bool,
) -> int:
    """Print the answers of a run's adapter, or of a plain model folder."""
    import json

    from strix_train import environment
    from strix_train.data import questions as asked
    from strix_train.errors import InputError, Problem
    from strix_train.origin import find
    from strix_train.quietly import quietly
    from strix_train.recipe.schema import Question

    questions = [
        Question.model_construct(prompt=prompt, expect="", system=system) for prompt in prompts if prompt.strip()
    ]
    if file is not None:
        questions += asked.load(file, expected=False)
    if not questions:
        raise InputError(Problem("there is nothing to ask", cure="give --prompt or --prompts FILE.jsonl"))
    found = find(source)
    environment.prepare(offline=found.base.local)
    with quietly():
        from strix_train.generate import generate as work

        answers = work(found, questions, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    for answer in answers:
        if as_json:
            click.echo(json.dumps(answer.as_json(), ensure_ascii=False))
        elif len(answers) == 1:
            click.echo(answer.text)
        else:
            click.echo(f"> {answer.question.prompt}\n{answer.text}\n")
    return 0


@cli.command()
@click.argument("source", metavar="RUN|MODEL")
@click.option("--system", callback=_whole, help="System message of the conversation.")
@click.option("--max-new-tokens", type=click.IntRange(1, 32768), default=512, show_default=True)
@click.option("--temperature", type=click.FloatRange(0.0, 5.0), default=0.0, show_default=True, help="0 is greedy.")
def chat(source: str, system: str | None, max_new_tokens: int, temperature: float) -> int:
    """Talk with a trained run, or with a plain model folder, in the terminal."""
    import sys

    from strix_train import environment
    from strix_train.chat import HELP, Chat, converse
    from strix_train.origin import find
    from strix_train.quietly import quietly

    found = find(source)
    environment.prepare(offline=found.base.local)
    with quietly():
        from strix_train.generate import load

        model, tokenizer = load(found)
        talk = Chat(model, tokenizer, system=system, max_new_tokens=max_new_tokens, temperature=temperature)
    if sys.stdin.isatty():
        click.echo(HELP)
    converse(talk)
    return 0


@cli.command()
def recipes() -> int:
    """List the recipes that came along."""
    from strix_train.errors import TrainError
    from strix_train.names import shipped_recipes

    found = shipped_recipes()
    if not found:
        raise TrainError("no recipes came along", cure="set STRIX_RECIPES to a folder of recipes")
    for name, path in found.items():
        with path.open(encoding="utf-8") as stream:
            first = stream.readline()
        click.echo(f"{name:<24} {first.lstrip('# ').rstrip()}")
    click.echo(f"in {next(iter(found.values())).parent}")
    return 0


@cli.command("import")
@click.argument("gguf", metavar="FILE.gguf", type=_PATH)
@click.argument("folder", metavar="DIR", type=_PATH)
@click.option("--dtype", type=click.Choice(["bf16", "fp16", "fp32"]), default="bf16", show_default=True)
@click.option("--sha256", metavar="HEX", help="Refuse a file with another digest.")
def import_(gguf: Path, folder: Path, dtype: str, sha256: str | None) -> int:
    """Make the model folder DIR of a GGUF file."""
    from strix_train import environment
    from strix_train.importing import import_gguf, look
    from strix_train.quietly import quietly

    look(gguf)
    environment.prepare(offline=True)
    with quietly():
        facts: dict[str, Any] = import_gguf(gguf, folder, dtype=dtype, sha256=sha256)
    click.echo(f"{folder}: {facts['model_type']}, {facts['parameters']:,} parameters, {facts['dtype']}")
    return 0


for command in (bench, evaluate, export, report):
    cli.add_command(command)
