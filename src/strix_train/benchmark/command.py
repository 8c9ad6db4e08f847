"""`train bench`, from its options to the files that it leaves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from strix_train.benchmark import cells, table
from strix_train.benchmark.cells import Cell, Result, Size
from strix_train.errors import InputError, Problem, nearest
from strix_train.estimate import machines
from strix_train.runfolder import RunFolder

Tell = Callable[[str], None]


def words(text: str, known: Sequence[str], what: str) -> list[str]:
    """Return the words of a list with commas. Raises InputError for one that is not known."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    for word in found:
        if word not in known:
            raise InputError(Problem(f"there is no {what} '{word}'", cure=nearest(word, [*known])))
    if not found:
        raise InputError(Problem(f"no {what} is named", cure=f"name some of {', '.join(known)}"))
    return found


def run(
    models: Sequence[str],
    *,
    adapters: Sequence[str],
    backends: Sequence[str],
    size: Size,
    settings: Sequence[str],
    folder: Path | None,
    limit: float,
    anyway: bool,
    tell: Tell,
) -> int:
    """Measure every cell, one after the other, and return the exit code: 1 where none ran."""
    target = (folder or Path(f"bench-{time.strftime('%Y%m%d-%H%M%S')}")).absolute()
    if target.exists() and any(target.iterdir()):
        raise InputError(Problem(f"{target} holds something already", cure="name another folder with --to"))
    target.mkdir(parents=True, exist_ok=True)
    machine = machines.here()
    tell(f"{machine.name}: {size.batch} rows of {size.length} tokens × {size.accumulation}, {size.steps} steps a cell")
    cells.prepare(target, size)
    wanted = [
        Cell(model, adapter, backend)
        for model in models
        for backend in cells.BACKENDS
        if backend in backends
        for adapter in adapters
    ]
    results: list[Result] = []
    for number, cell in enumerate(wanted, start=1):
        tell(f"{number} of {len(wanted)}: {cell.model}, {cell.adapter}, {cell.backend} …")
        found = cells.run(target, cell, size, machine, settings=settings, limit=limit, anyway=anyway)
        results.append(found)
        tell(f"    {table.cell(found)}{f': {found.reason}' if found.reason else ''}")
        _write(target, results, adapters, machine.name, size)
    title = f"{machine.name}: {size.batch} × {size.length} tokens × {size.accumulation}"
    tell("")
    tell((target / "table.txt").read_text(encoding="utf-8").rstrip())
    try:
        drawn = table.picture(results, adapters, target / "table.png", title)
    except ImportError:
        tell("matplotlib is not installed: no table.png")
        drawn = False
    tell(f"in {target}: table.txt, table.csv, results.json{', table.png' if drawn else ''}")
    return int(all(each.state != "ok" for each in results))


def _write(target: Path, results: Sequence[Result], adapters: Sequence[str], machine: str, size: Size) -> None:
    """Write what is known after each cell, so that an interruption loses nothing."""
    folder = RunFolder(target)
    folder.write("table.txt", table.text(results, adapters) + "\n")
    folder.write("table.csv", table.as_csv(results))
    facts = {
        "device": machine,
        "batch": size.batch,
        "accumulation": size.accumulation,
        "length": size.length,
        "steps": size.steps,
        "date": time.strftime("%Y-%m-%d"),
        "cells": [each.as_json() for each in results],
    }
    folder.write("results.json", json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
