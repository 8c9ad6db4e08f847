"""The row formats: one module each, with NAME, KEYS, `claims(value)` and `row(line, faults)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strix_train.data.formats import messages, prompt_completion
from strix_train.data.lines import Faults, Line
from strix_train.data.rows import Row


@dataclass(frozen=True, slots=True)
class Format:
    """A row format. `claims`: whether an object looks like it. `row`: the row, or None with the fault noted."""

    name: str
    keys: tuple[str, ...]
    claims: Callable[[dict[str, Any]], bool]
    row: Callable[[Line, Faults], Row | None]


FORMATS: dict[str, Format] = {
    module.NAME: Format(module.NAME, module.KEYS, module.claims, module.row) for module in (messages, prompt_completion)
}
