"""This program's own version, as it stands in what it writes."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def version() -> str:
    try:
        return installed("strix-finetune")
    except PackageNotFoundError:  # run from its sources
        return "0"
