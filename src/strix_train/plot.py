"""The loss curve as a picture."""

from __future__ import annotations

import json
from pathlib import Path


def loss_curve(metrics: Path, target: Path, title: str) -> bool:
    """Draw loss and gradient norm over the steps. Returns False where there is nothing to draw."""
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()] if metrics.is_file() else []
    rows = [row for row in rows if isinstance(row["loss"], float)]
    if not rows:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps = [row["step"] for row in rows]
    axes.plot(steps, [row["loss"] for row in rows], color="#1f5fa8", linewidth=1.6, label="loss")
    axes.set(xlabel="optimizer step", ylabel="training loss", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    norms = [row["grad_norm"] for row in rows]
    if all(isinstance(norm, float) for norm in norms):
        other = axes.twinx()
        other.plot(steps, norms, color="#b0703a", linewidth=0.9, alpha=0.6)
        other.set_ylabel("gradient norm", color="#b0703a")
        other.set_ylim(bottom=0)
    aside = target.with_name(f".{target.name}.partial")
    figure.savefig(aside, format="png")
    aside.replace(target)
    return True
