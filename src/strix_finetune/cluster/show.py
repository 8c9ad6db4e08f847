"""What a check found, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strix_finetune.cluster.facts import slowest
from strix_finetune.cluster.findings import LEVELS

if TYPE_CHECKING:
    from rich.console import Console

    from strix_finetune.cluster.examine import Examined

_STYLES = {"ok": "green", "warning": "yellow", "failure": "bold red"}


def table(examined: Examined, console: Console, *, short: bool = False) -> None:
    """Print a row a finding with its cure, the variables of training, and the count. `short`: no row that is fine."""
    from rich.table import Table
    from rich.text import Text

    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("", "check", "where", "what was found"):
        rows.add_column(name, overflow="fold", header_style="dim")
    for finding in examined.findings:
        if short and finding.level == "ok":
            continue
        says = Text(finding.says)
        if finding.cure and finding.level != "ok":
            says.append(f"\ncure: {finding.cure}", style="italic")
        rows.add_row(Text(finding.level, style=_STYLES[finding.level]), finding.check, Text(finding.where), says)
    if rows.row_count:
        console.print(rows)
    if examined.environments and not short:
        console.print()
        console.print(_environments(examined), soft_wrap=True, highlight=False, markup=False)
    console.print()
    console.print(summary(examined), highlight=False, markup=False)


def summary(examined: Examined) -> str:
    """One line: whether training would go, and how many findings there are of each level."""
    counts = ", ".join(f"{count} {level}" for level in LEVELS if (count := examined.count(level)))
    verdict = "training would fail" if examined.failed else "training can start"
    return f"{verdict}: {counts} ({examined.seconds:.0f} s)"


def _environments(examined: Examined) -> str:
    """What is the same on all nodes once, then what each has for itself."""
    named = examined.environments
    first = next(iter(named.values()))
    common = {key: value for key, value in first.items() if all(each.get(key) == value for each in named.values())}
    lines = ["training gets: " + " ".join(f"{key}={value}" for key, value in common.items())]
    for name, each in named.items():
        own = {key: value for key, value in each.items() if key not in common}
        if own:
            lines.append(f"  on {name}: " + " ".join(f"{key}={value}" for key, value in own.items()))
    return "\n".join(lines)


def as_json(examined: Examined) -> dict[str, Any]:
    measured = slowest(examined.found.ways) if examined.found else None
    return {
        "cluster": str(examined.cluster.path),
        "nodes": [node.name for node in examined.cluster.nodes],
        "image": examined.image,
        "failed": examined.failed,
        "seconds": round(examined.seconds, 2),
        "counts": {level: examined.count(level) for level in LEVELS},
        "link": {"gbit": measured[0], "round_trip_us": measured[1]} if measured else None,
        "findings": [
            {
                "check": finding.check,
                "level": finding.level,
                "nodes": list(finding.nodes),
                "says": finding.says,
                "cure": finding.cure,
                "data": dict(finding.data),
            }
            for finding in examined.findings
        ],
        "environment": {name: dict(each) for name, each in examined.environments.items()},
    }
