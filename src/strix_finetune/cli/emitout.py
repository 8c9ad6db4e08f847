"""What was emitted goes to the terminal, or into files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from strix_finetune.emit import Emitted
from strix_finetune.emitted import write


def out(made: Sequence[Emitted], output: Path | None, *, force: bool) -> int:
    """Print definitions, with the name of each where there are several, or write them; returns the exit code."""
    if output is None:
        for number, file in enumerate(made):
            if len(made) > 1:
                click.echo(f"{'' if number == 0 else chr(10)}# file: {file.name}")
            click.echo(file.text, nl=False)
        return 0
    for path in write(made, output, force=force):
        click.echo(f"wrote {path}", err=True)
    return 0
