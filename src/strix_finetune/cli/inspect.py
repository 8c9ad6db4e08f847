"""inspect: which GPU targets a library, wheel or folder holds code for."""

from __future__ import annotations

import json

import click

from strix_finetune.cli.options import json_option
from strix_finetune.codeobject import CodeObjectError, Report, TargetSummary, scan
from strix_finetune.codeobject.model import sort_targets
from strix_finetune.errors import InputError, Problem, WorkError
from strix_finetune.sizes import fitting


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--require", multiple=True, metavar="GFX", help="Fail unless some FILE holds executable code for it.")
@json_option
def command(files: tuple[str, ...], require: tuple[str, ...], as_json: bool) -> int:
    """Show which GPU targets FILE holds code for, how much, and for which wave size.

    FILE is a library or program, a code object (.hsaco), an offload bundle, a kpack archive, a wheel, or a folder
    of these. No GPU and no ROCm is needed. A wheel is read through, not unpacked.
    """
    faults: list[CodeObjectError] = []
    reports: list[Report] = []
    for file in files:
        found = False
        try:
            for report in scan(file, faults.append):
                found = True
                reports.append(report)
                if not as_json:
                    _show(report)
        except CodeObjectError as error:
            faults.append(error)
            continue
        if not found and not as_json:
            click.echo(f"{file}: no AMD GPU code")
    if as_json:
        click.echo(json.dumps({"files": [report.to_json() for report in reports]}, indent=1))
    if faults:
        raise InputError([problem for fault in faults for problem in fault.problems])
    held = {target for report in reports for target in report.targets}
    missing = [target for target in require if target not in held]
    if missing:
        there = f"there is code for {', '.join(sort_targets(held))}" if held else "there is no GPU code at all"
        raise WorkError([Problem(f"no code for {target} in {', '.join(files)}", cure=there) for target in missing])
    return 0


def _show(report: Report) -> None:
    summaries = report.summaries()
    if not summaries:
        click.echo(f"{report.path}: no AMD GPU code")
    else:
        count = len(report.targets)
        encodings = sorted({container.encoding for container in report.containers})
        packed = f" ({', '.join(encodings)})" if encodings else ""
        click.echo(f"{report.path}: code for {count} target{'s' * (count != 1)}{packed}")
        width = max(len(summary.target_id) for summary in summaries)
        for summary in summaries:
            click.echo(f"  {summary.target_id:<{width}}  {_describe(summary)}")
    for warning in report.warnings:
        click.echo(f"  note: {warning}")


def _describe(summary: TargetSummary) -> str:
    size = f"{fitting(summary.size):>11} in {summary.objects} object{'s' * (summary.objects != 1)}"
    if not summary.runs:
        return f"{size}, nothing executable"
    waves = " and ".join(str(wave) for wave in summary.wave_sizes) or "not stated"
    return f"{size}, {fitting(summary.code_size)} machine code, {summary.kernels} kernels, wave {waves}"
