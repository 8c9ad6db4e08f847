"""The number that a text ends with, as answers to sums do."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?|-?\.\d+")


def last_number(text: str) -> float | None:
    """Return the last number of a text, or None: 1,234.5 is one number."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None
