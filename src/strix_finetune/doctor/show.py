"""A report for people, for programs, and as a list of commands."""

from __future__ import annotations

import textwrap
from typing import Any

import click

from strix_finetune.doctor.values import VERDICTS, Report, Result

_COLOURS = {"ok": "green", "advice": "cyan", "warning": "yellow", "blocks": "red", "unknown": "white"}
_WORDS = {"unknown": "not shown"}
_WIDTH = 110


def text(report: Report, *, verbose: bool = False) -> str:
    """One paragraph a finding, in the order of the checks, and a line of numbers."""
    width = max((len(result.check) for result in report.results), default=0)
    indent = " " * (11 + width)
    lines = []
    for result in report.results:
        finding = result.finding
        verdict = click.style(f"{_WORDS.get(finding.verdict, finding.verdict):<9}", fg=_COLOURS[finding.verdict])
        says = _wrapped(finding.says, indent)
        lines.append(f"{verdict}  {result.check:<{width}}{says[len(indent) - 2 :]}".rstrip())
        if finding.fix:
            lines.append(f"{indent}{_wrapped(f'fix: {finding.fix}', indent).lstrip()}")
            lines += [f"{indent}  $ {command}" for command in finding.commands]
        if verbose or finding.verdict == "blocks":
            lines += [f"{indent}{_wrapped(line, indent).lstrip()}" for line in _read(result, verbose)]
    counts = [f"{report.count(name)} {_WORDS.get(name, name)}" for name in VERDICTS if report.count(name)]
    return "\n".join([*lines, "", ", ".join(counts)])


def as_json(report: Report) -> dict[str, Any]:
    return {
        "root": report.root,
        "blocked": report.blocked,
        "counts": {name: report.count(name) for name in VERDICTS},
        "findings": [
            {
                "check": result.check,
                "verdict": result.finding.verdict,
                "says": result.finding.says,
                "fix": result.finding.fix,
                "commands": list(result.finding.commands),
                "data": dict(result.finding.data),
                "read": list(result.read),
                "absent": list(result.absent),
            }
            for result in report.results
        ],
    }


def fixes(report: Report) -> str:
    """A shell script to read: worst first, with the reason above each command. Nothing is run."""
    lines = ["# What doctor would change. Nothing of it was run: read each line before you do."]
    for verdict in VERDICTS:
        for result in report.results:
            finding = result.finding
            if finding.verdict == verdict and finding.fix:
                lines += ["", *_comment(f"{verdict}, {result.check}: {finding.says}"), *_comment(f"fix: {finding.fix}")]
                lines += finding.commands
    return "\n".join(lines) if len(lines) > 1 else "# There is nothing to fix."


def _comment(words: str) -> list[str]:
    return textwrap.wrap(words, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)


def _wrapped(words: str, indent: str) -> str:
    return textwrap.fill(
        words, _WIDTH + len(indent), initial_indent=indent, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _read(result: Result, verbose: bool) -> list[str]:
    lines = [f"read: {', '.join(result.read)}"] if result.read else []
    return lines + ([f"not there: {', '.join(result.absent)}"] if verbose and result.absent else [])
