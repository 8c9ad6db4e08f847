"""diff: what is other in one image than in another, here or in a registry."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from strix_finetune.cli.options import engine_option, json_option
from strix_finetune.sizes import fitting

if TYPE_CHECKING:
    from strix_finetune.engine.base import Engine
    from strix_finetune.oci.difference import Difference, FileChange
    from strix_finetune.oci.whole import Whole

_SHOWN = 20
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


@click.command()
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@engine_option()
@click.option("--files", is_flag=True, help="Name every file. Without it: of each package or folder how many.")
@click.option("--exit-code", is_flag=True, help="Exit 1 where they differ.")
@json_option
def diff(before: str, after: str, engine: str, files: bool, exit_code: bool, as_json: bool) -> int:
    """Explain how image B differs from image A: packages, files, settings and sizes.

    A and B are names or ids of images of this engine, targets (gfx1151, cpu), or names in a registry (HOST/NAME:TAG or
    HOST/NAME@sha256:...). Times, logs and caches are counted, not named: pushed images do not have them.
    """
    from strix_finetune.engine.select import connect
    from strix_finetune.oci.difference import compare

    connection = connect(engine, os.environ)  # type: ignore[arg-type]
    try:
        found = compare(_whole(connection, before), _whole(connection, after))
    finally:
        connection.close()
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1))
    else:
        _show(found, every=files)
    return int(exit_code and not found.same)


def _whole(engine: Engine, name: str) -> Whole:
    """The image of this engine, else that of a registry."""
    import re

    from strix_finetune import names
    from strix_finetune.errors import EngineError
    from strix_finetune.oci import whole

    for ref in (name, names.final_ref(name)) if re.fullmatch(r"[a-z0-9]+", name) else (name,):
        if engine.image(ref) is not None:
            return whole.local(engine, ref)
    repository, mark, reference = name.partition("@")
    if not mark:
        repository, mark, reference = name.rpartition(":")
    if not mark or "/" in reference or "/" not in repository or repository.startswith("localhost/"):
        raise EngineError(f"there is no image {name} here", cure="see 'strix-finetune images'")
    from strix_finetune import netconf
    from strix_finetune.registry import client
    from strix_finetune.registry.repository import parse

    settings = netconf.collect(os.environ)
    return whole.pushed(client.connect(parse(repository), settings, os.environ), reference)


def _show(found: Difference, *, every: bool) -> None:
    if found.same:
        click.echo("the same files and settings")
    for row in found.packages:
        versions = " -> ".join(version or "none" for version in (row.before, row.after))
        grown = row.size_after - row.size_before
        click.echo(f"{_SIGNS[row.what]} {row.kind} {row.name}  {versions}  {_signed(grown)}")
    for setting in found.settings:
        click.echo(f"~ {setting.name}  {_short(setting.before)} -> {_short(setting.after)}")
    if found.files:
        counts: Counter[str] = Counter(change.what for change in found.files)
        click.echo("files: " + ", ".join(f"{counts[what]} {what}" for what in _SIGNS if counts[what]))
        _files(found.files) if every else _folders(found.files)
    ignored = [(found.times, "differ in their time alone"), (found.noise, "are logs, caches or marks of the engine")]
    for count, words in ignored:
        if count:
            click.echo(f"{count} file{'s' * (count != 1)} {words}")
    grown = found.size_after - found.size_before
    click.echo(f"size: {fitting(found.size_before)} -> {fitting(found.size_after)} ({_signed(grown)})")
    click.echo(f"layers: {found.layers_shared} of {found.layers} are shared")


def _files(changes: Sequence[FileChange]) -> None:
    for change in changes:
        how = f"  {', '.join(change.how)}" if change.how else ""
        sizes = " -> ".join(str(size) for size in (change.before, change.after) if size is not None)
        click.echo(f"  {_SIGNS[change.what]} /{change.path}{how}  {sizes} bytes")


def _folders(changes: Sequence[FileChange]) -> None:
    sums: dict[str, list[int]] = {}
    for change in changes:
        row = sums.setdefault(change.package, [0, 0])
        row[0] += 1
        row[1] += (change.after or 0) - (change.before or 0)
    ordered = sorted(sums.items(), key=lambda item: (-abs(item[1][1]), -item[1][0], item[0]))
    for name, (count, grown) in ordered[:_SHOWN]:
        click.echo(f"  {name}: {count} file{'s' * (count != 1)}, {_signed(grown)}")
    if len(ordered) > _SHOWN:
        click.echo(f"  and {len(ordered) - _SHOWN} more; --files names every file")


def _short(text: str | None) -> str:
    if text is None:
        return "none"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _signed(size: int) -> str:
    return "same size" if size == 0 else f"{'+' if size > 0 else '-'}{fitting(abs(size))}"
