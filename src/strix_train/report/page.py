"""The page itself: values into HTML, every one of them escaped."""

from __future__ import annotations

from pathlib import Path

from strix_train import __version__
from strix_train.errors import InputError, Problem
from strix_train.report.gather import gather


def html(run: Path) -> str:
    """Return the page about a run folder. Raises InputError for what is none."""
    from jinja2 import Environment, StrictUndefined

    run = run.absolute()
    if not (run / "recipe.resolved.yaml").is_file():
        raise InputError(Problem(f"{run} is not a run folder", cure="name the folder that `train` wrote"))
    # what a model says is text of strangers: nothing of it may become a part of the page
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(Path(__file__).with_name("page.html.j2").read_text(encoding="utf-8"))
    return template.render(page=gather(run), version=__version__)


def write(run: Path, target: Path | None = None) -> Path:
    """Write the page, by default as report.html in the run folder, and return its path. Raises InputError."""
    text = html(run)
    target = target or run / "report.html"
    if target.is_dir():
        raise InputError(Problem(f"{target.absolute()} is a folder", cure="name a file with --to"))
    aside = target.with_name(f".{target.name}.partial")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(target)
    except OSError as error:
        raise InputError(Problem(f"{target} cannot be written: {error.strerror}", cure="give --to")) from None
    return target
