"""What a check of a cluster says: frozen values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["ok", "warning", "failure"]
# worst first
LEVELS: tuple[Level, ...] = ("failure", "warning", "ok")
Datum = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `says`: a sentence without its full stop; `cure`: the one thing to do.

    `nodes`: none for the cluster as a whole, one node, or a pair, the sender first. `data`: the numbers behind it, each
    with its unit in its name.
    """

    check: str
    level: Level
    nodes: tuple[str, ...]
    says: str
    cure: str = ""
    data: Mapping[str, Datum] = field(default_factory=dict, hash=False)

    @property
    def where(self) -> str:
        """The node or the pair, for people."""
        return " > ".join(self.nodes) or "all"


def failed(findings: Iterable[Finding]) -> bool:
    """Whether training would fail."""
    return any(finding.level == "failure" for finding in findings)
