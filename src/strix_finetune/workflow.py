"""A CI workflow that builds, tests and pushes images, one job a target: pure but for reading its template."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from strix_finetune.emit import MARK, Emitted, rendered, signed
from strix_finetune.errors import InputError

NAME = "strix-finetune.yml"
_TEMPLATE = "actions.yaml.j2"
_RUNNER = re.compile(r"[A-Za-z0-9][\w.-]*(?:,[A-Za-z0-9][\w.-]*)*")
_REGISTRY = re.compile(r"[a-z0-9][\w.:-]*/[a-z0-9][\w./-]*")


def render(targets: Sequence[tuple[str, str]], folder: Path, *, to: str = "", runner: str = "") -> Emitted:
    """`targets`: (target, channel). `to`: HOST/NAME, empty for the repository's variable REGISTRY; `runner`: labels.

    Raises InputError for a registry or runner that cannot be one.
    """
    if to and not _REGISTRY.fullmatch(to):
        raise InputError(f"'{to}' is not a repository of a registry", cure="write HOST/NAME, without a tag")
    if runner and not _RUNNER.fullmatch(runner):
        raise InputError(f"'{runner}' is no runner", cure="write its labels with commas between them")
    values = {
        "rows": [{"target": target, "channel": channel} for target, channel in targets],
        "registry": to,
        "runners": runner.split(",") if runner else ["ubuntu-latest"],
        "mark": MARK,
    }
    return Emitted(".yml", NAME, signed("actions", rendered(_TEMPLATE, values, folder)))
