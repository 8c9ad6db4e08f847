"""sbom: what an image is made of."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strix_finetune import leftovers
from strix_finetune.cli.options import image_options
from strix_finetune.workspace import Options

if TYPE_CHECKING:
    from strix_finetune.engine.base import Engine
    from strix_finetune.supply.model import Bill
    from strix_finetune.supply.subject import Subject


@contextmanager
def opened(text: str, options: Options) -> Iterator[tuple[Engine, Subject]]:
    """The engine, and the image that `text` means."""
    from strix_finetune.engine.select import connect
    from strix_finetune.supply.subject import find

    engine = connect(options.engine, os.environ)  # type: ignore[arg-type]
    try:
        yield engine, find(text, options, engine, os.environ)
    finally:
        engine.close()


def write(text: str, output: Path | None) -> None:
    """Print, or write a file whole or not at all."""
    if output is None:
        click.echo(text)
        return
    leftovers.write(output, text + "\n")


output_option = click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write this file instead of printing."
)


@click.command()
@click.argument("image", default="", metavar="[IMAGE|TARGET]")
@click.option("--format", "form", type=click.Choice(["cyclonedx", "spdx"]), default="cyclonedx", show_default=True)
@output_option
@image_options
def sbom(image: str, form: str, output: Path | None, options: Options) -> int:
    """List everything in an image with versions and licences, and compare it with the lock; exit 1 where they differ.

    IMAGE is a name, an id or a layer; without one, the final image of the target.
    """
    with opened(image, options) as (engine, subject):
        found = made(engine, subject)
    write(rendered(found, form), output)
    _tell(found)
    return 0


def made(engine: Engine, subject: Subject) -> Bill:
    """The bill of an image. Raises WorkError where the image is not what its lock says."""
    from strix_finetune.supply import bill

    if subject.unknown:
        print(f"note: {subject.ref} is not compared with a lock: {subject.unknown}", file=sys.stderr)
    return bill.refuse(bill.make(engine, subject.image, subject.expected), subject.ref)


def rendered(found: Bill, form: str) -> str:
    from strix_finetune.supply import cyclonedx, spdx
    from strix_finetune.supply.tool import version

    document = (spdx if form == "spdx" else cyclonedx).document(found, version())
    return json.dumps(document, indent=1, ensure_ascii=False)


def _tell(found: Bill) -> None:
    """What people should know about the licences, beside the document."""
    debs = sum(item.kind == "deb" for item in found.components)
    dists = sum(item.kind == "pypi" for item in found.components)
    unknown = sum(item.licence is None for item in found.components)
    print(f"{debs} Debian packages, {dists} Python distributions; {unknown} name no licence", file=sys.stderr)
    for name, files in found.affero.items():
        what = f"{len(files)} file{'s' * (len(files) > 1)} of {name}" if files else f"{name} as a whole"
        print(f"AGPL: {what}" + (f", such as /{files[0]}" if files else ""), file=sys.stderr)
