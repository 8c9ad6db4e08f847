"""What a run tells before it begins and after it has ended: on the screen, and in report.json."""

from __future__ import annotations

import json
from typing import Any

from strix_train.console import Console, duration
from strix_train.plan import Findings, Plan, findings, formats
from strix_train.runfolder import RunFolder


def report(
    plan: Plan, folder: RunFolder, backend: Any, wish: Any, facts: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """Draw the loss curve and return the content of report.json. `seconds` is the whole run's wall time."""
    from strix_train.plot import loss_curve

    rows = [json.loads(line) for line in folder.metrics.read_text(encoding="utf-8").splitlines()]
    try:
        drawn = loss_curve(folder.metrics, folder.path / "loss.png", f"{plan.loaded.name}: {plan.model.word}")
    except ImportError:
        print("matplotlib is not installed: no loss.png")
        drawn = False
    return {
        "recipe": plan.loaded.name,
        "model": plan.model.word,
        "method": plan.loaded.recipe.method.kind,
        "backend": backend.name,
        "device": wish.device.name,
        "precision": wish.precision,
        "loss_first": rows[0]["loss"] if rows else None,
        "loss_last": rows[-1]["loss"] if rows else None,
        "loss_curve": "loss.png" if drawn else None,
        "adapter": "adapter" if folder.adapter.is_dir() else None,
        "result": folder.result.name if folder.result.is_dir() else None,
        "seconds": round(seconds, 3),
        **facts,
    }


def close(console: Console, folder: RunFolder, report: dict[str, Any]) -> None:
    """Show how a run ended and where its results lie."""
    shown = folder.path
    if report["loss_curve"]:
        console.fact("loss", f"{report['loss_first']:.4f} → {report['loss_last']:.4f}, curve in {shown / 'loss.png'}")
    if report.get("questions"):
        asked = report["questions"]
        console.fact(
            "answers", f"{asked['before']} of {asked['of']} right before, {asked['after']} of {asked['of']} after"
        )
    console.fact(folder.result.name, str(folder.result))
    console.fact("time", f"{duration(report['seconds'])}, of it {duration(report['training_seconds'])} in steps")
    if report["method"] != "reward":
        console.fact("try", f'train generate {shown} --prompt "…"')


def show_plan(console: Console, plan: Plan) -> None:
    """Show what will be trained on what."""
    console.fact("recipe", str(plan.loaded.path))
    found = f" ({plan.model.source})" if plan.model.local and plan.model.word != plan.model.source else ""
    console.fact("model", plan.model.word + found)
    facts = findings(plan)
    parts = [f"{facts.rows} rows of {formats(plan, 'train')}"]
    if plan.evaluation:
        parts.append(f"{len(plan.evaluation)} for evaluation")
    if plan.questions:
        parts.append(f"{len(plan.questions)} questions")
    console.fact("data", ", ".join(parts))
    for sentence in warnings(facts):
        console.fact("warning", sentence)


def warnings(facts: Findings) -> list[str]:
    """Return what is odd about the data, though not wrong."""
    found = []
    if facts.repeated:
        found.append(f"{facts.repeated} training rows repeat another one word for word")
    if facts.shared_with_eval:
        found.append(f"{facts.shared_with_eval} evaluation rows are also training rows, so their loss shows nothing")
    if facts.questions_in_training:
        found.append(f"{facts.questions_in_training} questions are also training rows, so they are not held out")
    about = "" if facts.exact else "about "
    if facts.cut:
        found.append(f"{about}{facts.cut} rows are longer than max_length, {about}{facts.lost} lose their whole answer")
    if facts.skipped:
        found.append(f"{facts.skipped} rows with faults were left out (data.faulty: skip)")
    return found
