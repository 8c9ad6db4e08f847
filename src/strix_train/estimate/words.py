"""Sizes and times as people read them."""

from __future__ import annotations

from strix_train.estimate.memory import GIB


def size(value: float) -> str:
    """Return bytes of memory as GiB, three digits or so."""
    return f"{value / GIB:.2f} GiB" if value < 99.5 * GIB else f"{value / GIB:.0f} GiB"


def traffic(value: float) -> str:
    """Return bytes on a wire, whose rates are decimal."""
    return f"{value / 1e6:.0f} MB" if value < 0.9995e9 else f"{value / 1e9:.1f} GB"


def duration(seconds: float) -> str:
    """Return the time of a step."""
    return f"{seconds * 1000:.0f} ms" if seconds < 0.1 else f"{seconds:.2f} s" if seconds < 60 else f"{seconds:.0f} s"
