"""The results as text, as CSV and as a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from strix_train.benchmark.cells import Result

_SHORT = {"lora8bit": "8-bit LoRA", "qlora": "QLoRA", "lora": "LoRA", "full": "full"}
_COLOURS = {"unsloth": "#1f5fa8", "hf": "#b0703a"}


def text(results: Sequence[Result], adapters: Sequence[str]) -> str:
    """Return a table: a row for each model and backend, a column for each adapter."""
    rows = list(dict.fromkeys((each.model, each.backend) for each in results))
    found = {(each.model, each.backend, each.adapter): each for each in results}
    head = ["model", "backend", *(_SHORT.get(adapter, adapter) for adapter in adapters)]
    body = [
        [model, backend, *(cell(found.get((model, backend, adapter))) for adapter in adapters)]
        for model, backend in rows
    ]
    widths = [max(len(row[at]) for row in [head, *body]) for at in range(len(head))]
    lines = [
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in [head, *body]
    ]
    notes = [f"{each.model}, {each.adapter}, {each.backend}: {each.reason}" for each in results if each.reason]
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def cell(result: Result | None) -> str:
    """Return what one cell shows."""
    if result is None:
        return "not run yet"
    if result.state != "ok":
        return result.state
    return f"{result.seconds:.3g} s, {result.memory / 2**30:.2f} GiB, {result.tokens_per_s:.0f} tokens/s"


def as_csv(results: Sequence[Result]) -> str:
    """Return one line a cell; sizes in bytes, empty where nothing was measured."""
    stream = io.StringIO()
    names = [*Result.__slots__]
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    for each in results:
        writer.writerow({name: "" if value == 0 else value for name, value in each.as_json().items()})
    return stream.getvalue()


def picture(results: Sequence[Result], adapters: Sequence[str], target: Path, title: str) -> bool:
    """Draw memory and step time of what ran. Returns False where nothing ran."""
    done = [each for each in results if each.state == "ok"]
    if not done:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(each.model for each in results))
    groups = [(model, adapter) for model in models for adapter in adapters]
    figure = Figure(figsize=(max(7.0, 1.1 * len(groups) + 2), 7), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    backends = list(dict.fromkeys(each.backend for each in results))
    width = 0.8 / len(backends)
    for number, backend in enumerate(backends):
        mine = {(each.model, each.adapter): each for each in results if each.backend == backend}
        for at, group in enumerate(groups):
            each = mine.get(group)
            x = at + (number - (len(backends) - 1) / 2) * width
            if each is None or each.state != "ok":
                above.text(x, 0, each.state if each else "not run", rotation=90, ha="center", va="bottom", size=7)
                continue
            look = {"width": width * 0.92, "color": _COLOURS.get(backend, "#666666")}
            above.bar(x, each.memory / 2**30, **look, label=None)
            below.bar(x, each.seconds, **look)
            if each.estimate:
                above.plot(x, each.estimate / 2**30, marker="_", markersize=14, color="black")
        above.bar(0, 0, color=_COLOURS.get(backend, "#666666"), label=backend)
    above.set(ylabel="peak memory, GiB (dash: estimate)", title=title)
    below.set(ylabel="seconds a step")
    below.set_xticks(range(len(groups)), [f"{Path(model).name}\n{adapter}" for model, adapter in groups], fontsize=7)
    for axes in (above, below):
        axes.set_xlim(-0.6, len(groups) - 0.4)
        axes.grid(axis="y", alpha=0.3)
        axes.set_ylim(bottom=0)
    above.legend(frameon=False)
    aside = target.with_name(f".{target.name}.partial")
    figure.savefig(aside, format="png")
    aside.replace(target)
    return True
