"""A report for people, for programs, and as a list of commands."""

from __future__ import annotations

import textwrap
from typing import Any

import click

from strix_finetune.doctor.values import VERDICTS, Report, Result

_COLOURS = {"ok": "green", "advice": "cyan", "warning": "yellow", "blocks": "red", "unknown": "white"}
_WORDS = {"unknown": "not shown"}
_WIDTH = 118


def text(report: Report, *, verbose: bool = False) -> str:
    """One paragraph a finding, in the order of the checks, and a line of numbers."""
    width = max((len(result.check) for result in report.results), default=0)
    indent = " " * (width + 13)
    lines: list[str] = []
    for number, result in enumerate(report.results):
        finding = result.finding
        word = f"{_WORDS.get(finding.verdict, finding.verdict):<9}"
        says = _wrapped(finding.says, indent).removeprefix(indent)
        lines.append(f"{click.style(word, fg=_COLOURS[finding.verdict])}  {result.check:<{width}}  {says}")
        if finding.fix:
            lines.append(_wrapped(f"fix: {finding.fix}", indent))
            lines += [f"{indent}  $ {command}" for command in finding.commands]
        last = number + 1 == len(report.results) or report.results[number + 1].check != result.check
        if verbose and last:
            lines += [_wrapped(line, indent) for line in _read(result)]
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
        words,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _read(result: Result) -> list[str]:
    pairs = (("read", result.read), ("not there", result.absent))
    return [f"{name}: {', '.join(paths)}" for name, paths in pairs if paths]
