"""The faults that reach a user: one type per kind, one sentence each, with a place and a cure.

Exit codes: 0 done, 1 the work failed, 2 the input is wrong, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fault lies: a file and, where known, its 1-based line."""

    path: Path
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line is not None else str(self.path)


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault as a sentence: what is wrong, where, and what to do about it."""

    message: str
    place: Place | None = None
    cure: str = ""

    def __str__(self) -> str:
        head = f"{self.place}: {self.message}" if self.place else self.message
        return f"{head}; {self.cure}" if self.cure else head


class StrixError(Exception):
    """Base of every fault that is shown to a user without a traceback."""

    exit_code = 1

    def __init__(self, problems: Problem | Sequence[Problem] | str, *, cure: str = "") -> None:
        if isinstance(problems, str):
            problems = Problem(problems, cure=cure)
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InputError(StrixError):
    """What the user gave is wrong: a definition, a recipe, an option. Exit code 2."""

    exit_code = 2


class DefinitionError(InputError):
    """A layer, channel, target or override file is wrong."""


class TemplateError(InputError):
    """A Dockerfile template does not render, or renders something that may not be built."""


class LockError(InputError):
    """The lock is missing, unreadable, out of date where that is not allowed, or breaks a ceiling."""


class WorkError(StrixError):
    """The input was right and the work failed all the same. Exit code 1."""


class EngineError(WorkError):
    """The container engine refused, failed or vanished."""


class EngineUnavailable(EngineError):
    """No engine answers: not running, no permission, or a wrong address; the sentence says which."""


class BuildFailed(EngineError):
    """A build step failed. `log_tail` holds the last lines that it printed."""

    def __init__(self, problem: Problem | str, *, log_tail: Sequence[str] = ()) -> None:
        super().__init__(problem)
        self.log_tail: tuple[str, ...] = tuple(log_tail)


class SmokeFailed(WorkError):
    """A smoke test of a freshly built layer failed; no tag was moved."""

    def __init__(self, problem: Problem | str, *, log_tail: Sequence[str] = ()) -> None:
        super().__init__(problem)
        self.log_tail: tuple[str, ...] = tuple(log_tail)


class TooLarge(WorkError):
    """A freshly built layer adds more than its budget; no tag was moved."""


class FetchFailed(WorkError):
    """A download was cut off, refused, or is not what the lock says."""


def nearest(word: str, known: Sequence[str]) -> str:
    """Return a ready cure for a mistyped word: the nearest known one, or the list of them."""
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known: {', '.join(sorted(known))}" if known else "none is defined"
