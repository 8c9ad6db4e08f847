"""What a run folder holds, as values for the page. A run that goes on, failed or was killed has a page as well."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strix_train import checkpoints
from strix_train.console import duration, gigabytes
from strix_train.report.svg import WIDE, Point, Series, chart, smooth
from strix_train.watch import lines

_STATES = {"done": "done", "interrupted": "interrupted", "failed": "failed"}
# Curves that have a chart of their own, and what is no curve.
_KNOWN = ("loss", "lr", "grad_norm", "tokens", "tokens_per_s", "seconds", "peak_memory", "step", "epoch", "num_tokens")


@dataclass(frozen=True, slots=True)
class Curve:
    """A chart with its heading."""

    title: str
    svg: str
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that the page says. Pairs are (what, value) in the order shown."""

    name: str
    state: str
    reason: str
    facts: list[tuple[str, str]]
    curves: list[Curve]
    data: list[tuple[str, str]]
    example: str
    questions: list[dict[str, Any]]
    samples: list[tuple[str, list[tuple[int, str]]]]
    exports: list[dict[str, Any]]
    kept: list[tuple[str, str]]
    versions: list[tuple[str, str]]
    recipe: str
    made: str = ""
    evaluation: list[tuple[str, str]] = field(default_factory=list)


def gather(run: Path) -> Page:
    """Read a run folder. Files that are missing or broken leave their part of the page empty."""
    report, versions, status = (_json(run / f"{name}.json") for name in ("report", "versions", "status"))
    rows, evaluations = lines(run / "metrics.jsonl"), lines(run / "evaluations.jsonl")
    rows = [row for row in rows if "loss" in row]
    return Page(
        name=run.name,
        state=_STATES.get(str(status.get("state")), "not finished"),
        reason=str(status.get("reason") or ""),
        facts=_facts(report, versions, rows),
        curves=_curves(rows, evaluations),
        data=_data(report, versions),
        example=str((report.get("first_batch") or {}).get("learned_text_of_row_1") or ""),
        questions=_questions(run),
        samples=_samples(run),
        exports=_exports(run),
        kept=[(path.name, _size(path)) for path in checkpoints.whole(run / "checkpoints")],
        versions=_versions(versions),
        recipe=_text(run / "recipe.resolved.yaml"),
        made=str(status.get("time") or ""),
        evaluation=_evaluation(run),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_text(path))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _pairs(*pairs: tuple[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in pairs if value not in (None, "", "None")]


def _number(value: Any, form: str) -> str | None:
    return format(value, form) if isinstance(value, (int, float)) else None


def _facts(report: dict[str, Any], versions: dict[str, Any], rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    device = versions.get("device") or {}
    trainable, total = report.get("trainable_parameters"), report.get("parameters")
    learn = f"{trainable:,} of {total:,}" if isinstance(trainable, int) and isinstance(total, int) else None
    losses = [row["loss"] for row in rows if isinstance(row["loss"], (int, float))]
    steps = f"{len(rows)} of {report['steps']}" if report.get("steps") else (str(len(rows)) if rows else None)
    asked = report.get("questions") or {}
    return _pairs(
        ("model", report.get("model") or (versions.get("inputs") or {}).get("model")),
        ("method", report.get("method")),
        ("backend", report.get("backend") or versions.get("backend")),
        ("device", report.get("device") or device.get("name")),
        ("number format", report.get("precision")),
        ("parameters that learn", learn),
        ("steps", steps),
        ("loss", f"{losses[0]:.4f} → {losses[-1]:.4f}" if losses else None),
        ("loss on held-out rows", _number(report.get("eval_loss"), ".4f")),
        (
            "answers right",
            f"{asked['before']} of {asked['of']} before, {asked['after']} of {asked['of']} after" if asked else None,
        ),
        ("time", duration(report["seconds"]) if report.get("seconds") else None),
        ("of it in steps", duration(report["training_seconds"]) if report.get("training_seconds") else None),
        ("speed", f"{report['tokens_per_s']:.0f} tokens/s" if report.get("tokens_per_s") else None),
        ("memory at most", gigabytes(report["peak_memory"]) if report.get("peak_memory") else None),
    )


def _curves(rows: list[dict[str, Any]], evaluations: list[dict[str, Any]]) -> list[Curve]:
    def points(key: str, scale: float = 1.0) -> tuple[Point, ...]:
        return tuple((row["step"], row[key] * scale) for row in rows if isinstance(row.get(key), (int, float)))

    loss = points("loss")
    held_out = tuple((row["step"], row["eval_loss"]) for row in evaluations if isinstance(row["eval_loss"], float))
    many = len(loss) > 20
    main = [Series("each step", "soft" if many else "line", loss)]
    legend = [("soft" if many else "line", "each step")]
    if many:
        main.append(Series("running mean", "line", smooth(loss)))
        legend.append(("line", "running mean"))
    if held_out:
        main.append(Series("held-out rows", "dots", held_out))
        legend.append(("dots", "held-out rows"))
    drawn = chart("Loss", main, x_label="optimizer step", y_label="loss", size=WIDE)
    found = [Curve("Loss", drawn, tuple(legend))]
    more = sorted({key for row in rows for key in row if key not in _KNOWN and isinstance(row[key], (int, float))})
    for title, key, label, scale in (
        ("Learning rate", "lr", "", 1.0),
        ("Gradient norm", "grad_norm", "norm", 1.0),
        ("Speed", "tokens_per_s", "tokens/s", 1.0),
        ("Memory", "peak_memory", "GiB at most so far", 2**-30),
        *((key, key, key.rpartition("/")[2], 1.0) for key in more),
    ):
        line = points(key, scale)
        shown = [Series(title, "other", line)]
        if len(line) > 200 and key not in ("lr", "peak_memory"):
            shown = [Series("each step", "faint", line), Series("running mean", "other", smooth(line))]
        found.append(Curve(title, chart(title, shown, x_label="optimizer step", y_label=label, zero=key in _KNOWN)))
    return [curve for curve in found if curve.svg]


def _data(report: dict[str, Any], versions: dict[str, Any]) -> list[tuple[str, str]]:
    batch, inputs = report.get("first_batch") or {}, versions.get("inputs") or {}
    shares = f"{batch['learned_tokens']:,} of {batch['tokens']:,} tokens" if batch.get("learned_tokens") else None
    named = [(key.removesuffix("_sha256"), value) for key, value in inputs.items() if key.endswith("_sha256") and value]
    digests = [(f"{name} rows, sha256", f"{value[:16]}…") for name, value in named]
    return _pairs(
        ("rows", _number(report.get("rows"), ",")),
        ("tokens seen", _number(report.get("tokens"), ",")),
        ("learned in the first batch", shares),
        *digests,
    )


def _questions(run: Path) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for line in _text(run / "answers.jsonl").splitlines():
        try:
            value = json.loads(line)
            entry = found.setdefault(value["prompt"], {"prompt": value["prompt"], "expect": value.get("expect", "")})
            entry[value["phase"]] = value["answer"]
            entry[f"{value['phase']}_right"] = value.get("right")
        except (ValueError, KeyError, TypeError):
            continue
    return list(found.values())


def _samples(run: Path) -> list[tuple[str, list[tuple[int, str]]]]:
    found: dict[str, list[tuple[int, str]]] = {}
    for row in lines(run / "samples.jsonl"):
        found.setdefault(str(row.get("prompt", "")), []).append((row["step"], str(row.get("answer", ""))))
    return list(found.items())


def _exports(run: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(run.glob("export/*/export.json")):
        facts = _json(path)
        files = {name: _bytes(entry.get("size", 0)) for name, entry in (facts.get("files") or {}).items()}
        compared = facts.get("comparison") or {}
        gguf = next((name for name in files if name.endswith(".gguf")), "")
        found.append(
            {
                "name": path.parent.name,
                "folder": str(path.parent.relative_to(run)),
                "files": {name: size for name, size in files.items() if name.endswith((".gguf", ".safetensors"))},
                "compared": f"{compared['alike']} of {compared['of']} answers are the model's own" if compared else "",
                "gguf": gguf,
            }
        )
    return found


def _evaluation(run: Path) -> list[tuple[str, str]]:
    """Return the numbers of the result, then those of its checkpoints, which say so."""
    found: list[tuple[str, Any]] = []
    for path in (
        run / "evaluation.json",
        *sorted(run.glob("evaluation-*.json"), key=lambda path: (len(path.name), path.name)),
    ):
        facts = _json(path)
        # a run of an earlier version may hold a checkpoint's numbers as its own
        of = Path(str(facts.get("of") or "adapter")).name
        more = "" if of in ("adapter", "model") else f" of {of}"
        found += [(f"{name}{more}", value) for name, value in (facts.get("summary") or {}).items()]
    return _pairs(*found)


def _versions(versions: dict[str, Any]) -> list[tuple[str, str]]:
    torch = versions.get("torch") or {}
    return _pairs(
        ("strix_train", versions.get("strix_train")),
        ("Python", versions.get("python")),
        ("image", versions.get("image_key")),
        ("ROCm", torch.get("hip")),
        ("CUDA", torch.get("cuda")),
        *(versions.get("packages") or {}).items(),
    )


def _size(folder: Path) -> str:
    return _bytes(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))


def _bytes(size: float) -> str:
    return gigabytes(size) if size >= 2**29 else f"{size / 2**20:.1f} MiB"
