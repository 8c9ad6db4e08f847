"""`train check`: what a recipe and its rows look like, as a table or as JSON; nothing heavy is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from strix_train import localtext
from strix_train import plan as plans
from strix_train.errors import InputError, Problem
from strix_train.plan import Plan
from strix_train.sources import Set
from strix_train.summary import warnings


def check(word: str, settings: Sequence[str], *, fetch: bool, as_json: bool) -> tuple[int, str]:
    """Return the exit code and the text to show. With `as_json` faults are part of the text, else they are raised."""
    try:
        plan = plans.make(word, settings, with_backend=False, fetch=fetch)
    except InputError as error:
        if not as_json:
            raise
        return error.exit_code, _json(
            {"recipe": word, "ok": False, "errors": [_fault(each) for each in error.problems]}
        )
    if as_json:
        return 0, _json(_facts(plan))
    return 0, "\n".join(_lines(plan))


def _json(value: Any) -> str:
    # half a character of a row's key has no UTF-8; the escape says the same to whoever reads JSON
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)


def _fault(problem: Problem) -> dict[str, Any]:
    place = problem.place
    return {
        "sentence": str(problem),
        "message": problem.message,
        "cure": problem.cure or None,
        "file": place.source if place else None,
        "line": (place.line if place else 0) or None,
        "column": (place.column if place else 0) or None,
        "around": problem.around or None,
    }


def notes(plan: Plan) -> list[str]:
    """Return what is odd, though not wrong, about the rows and about what could not be looked at."""
    found = warnings(plans.findings(plan))
    if len(plan.train) == 1:
        found.append("there is one row to train on: is the file one list, or one object a line?")
    elif 0 < len(plan.train) < plan.loaded.recipe.schedule.rows:
        found.append(f"there are fewer rows ({len(plan.train)}) than schedule.batch: every batch is all of them")
    for each in plan.sets:
        if each.data is None:
            found.append(f"{each.source.path} is on the hub and was not looked at: add --fetch, or train")
        elif each.data.notes:
            found.append(f"left out, for example: {each.data.notes[0]}")
    if plan.model.gguf and localtext.folder_of(plan.model) is None:
        found.append("the model is a GGUF file: its template and the rows' lengths are looked at when it is imported")
    elif localtext.folder_of(plan.model) is None:
        found.append("the model is not on this machine, so its template and the rows' lengths were not looked at")
    elif not plan.lengths:
        found.append(
            "the rows' lengths were not counted: the model has no tokenizer.json, or tokenizers is not installed"
        )
    return found


def _facts(plan: Plan) -> dict[str, Any]:
    recipe = plan.loaded.recipe
    return {
        "recipe": str(plan.loaded.path),
        "ok": True,
        "model": {"name": plan.model.word, "source": plan.model.source, "local": plan.model.local},
        "method": recipe.method.kind,
        "adapter": recipe.adapter.kind,
        "sets": [_set(plan, index, each) for index, each in enumerate(plan.sets)],
        "train_rows": len(plan.train),
        "eval_rows": len(plan.evaluation) if plan.evaluation else 0,
        "questions": len(plan.questions),
        "fingerprint": plan.train.fingerprint,
        "warnings": notes(plan),
        "errors": [],
    }


def _set(plan: Plan, index: int, each: Set) -> dict[str, Any]:
    found: dict[str, Any] = {"role": each.role, "path": each.source.path, "weight": each.source.weight, "rows": None}
    if each.data is None:
        return found
    lengths = plan.lengths.get(index)
    tokens = {name: getattr(lengths, name) for name in lengths.__slots__} if lengths and lengths.sampled else None
    return found | {
        "rows": len(each.data),
        "format": each.data.format,
        "files": len(each.data.files),
        "skipped": each.data.skipped,
        "turns": each.look.turns,
        "longest_characters": each.look.longest,
        "tokens": tokens,
        "sha256": each.data.sha256,
    }


def _lines(plan: Plan) -> Iterator[str]:
    recipe = plan.loaded.recipe
    rank = f" r={recipe.adapter.r}" if recipe.adapter.kind != "full" else ""
    yield f"recipe     {plan.loaded.path}"
    yield f"model      {plan.model.word} ({plan.model.source if plan.model.local else 'hub id'})"
    yield f"method     {recipe.method.kind}, adapter {recipe.adapter.kind}{rank}"
    held = f", {len(plan.evaluation)} for evaluation" if plan.evaluation else ""
    asked = f", {len(plan.questions)} questions" if plan.questions else ""
    yield f"rows       {len(plan.train)} to train on{held}{asked}"
    yield ""
    yield from _table(plan)
    yield ""
    for sentence in notes(plan):
        yield f"warning    {sentence}"
    yield "no faults found"


def _table(plan: Plan) -> Iterator[str]:
    """Yield the sets, one a line; lengths in tokens where the model's tokenizer is here."""
    rows = [("set", "path", "rows", "format", "turns", "longest text", "tokens: median", "95 %", "longest", "too long")]
    for index, each in enumerate(plan.sets):
        weight = f" × {each.source.weight:g}" if each.source.weight != 1 else ""
        if each.data is None:
            rows.append((each.role, each.source.path, "?", *("",) * 7))
            continue
        found = plan.lengths.get(index)
        tokens = ("", "", "", "")
        if found and found.sampled:
            about = "" if found.exact else "~"
            over = f"{about}{found.cut}, of them {about}{found.lost} without answer" if found.cut else "0"
            tokens = (str(found.median), str(found.high), str(found.longest), over)
        turns, longest = str(each.look.turns or ""), str(each.look.longest)
        rows.append(
            (each.role, each.source.path, f"{len(each.data)}{weight}", each.data.format, turns, longest, *tokens)
        )
    used = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in used}
    numbers = {2, 4, 5, 6, 7, 8}
    for row in rows:
        cells = (
            row[column].rjust(widths[column]) if column in numbers else row[column].ljust(widths[column])
            for column in used
        )
        yield "  ".join(cells).rstrip()
