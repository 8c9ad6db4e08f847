"""What a check is and what it says: frozen values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from strix_finetune.doctor.host import Host

Verdict = Literal["ok", "advice", "warning", "blocks", "unknown"]
# worst first
VERDICTS: tuple[Verdict, ...] = ("blocks", "warning", "advice", "unknown", "ok")
Datum = str | int | float | bool | list[str]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check saw. `says`: a sentence without its full stop.

    `fix`: the one thing to do, as a sentence; `commands`: the same for a shell, where it can be said so. `data`: the
    numbers behind it: sizes in GiB where the name ends in `_gib`, else as named.
    """

    verdict: Verdict
    says: str
    fix: str = ""
    commands: tuple[str, ...] = ()
    data: Mapping[str, Datum] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Check:
    """A check. `why` and `source` are what the documentation says of it; `verdicts`: those it can give.

    `run` yields nothing where there is nothing to say, such as on a machine without the thing in question.
    """

    name: str
    why: str
    source: str
    verdicts: tuple[Verdict, ...]
    run: Callable[[Host], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Result:
    """A finding with the check that it is from, and which files that check read or looked for in vain."""

    check: str
    finding: Finding
    read: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, in the order of the checks."""

    root: str
    results: tuple[Result, ...]

    def count(self, verdict: Verdict) -> int:
        return sum(result.finding.verdict == verdict for result in self.results)

    @property
    def blocked(self) -> bool:
        return self.count("blocks") > 0
