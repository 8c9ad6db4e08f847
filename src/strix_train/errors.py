"""What can go wrong, told in one sentence: what, where, and what to do. Exit codes 1, 2 and 130."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a fault lies. `source` is a path or an option's name; line and column are 1-based, 0 = unknown."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.source
        return f"{self.source}:{self.line}:{self.column}" if self.column else f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault. `str()` gives the sentence that the user reads.

    `around`: a piece of the text that the fault lies in, shown below the sentence.
    """

    message: str
    place: Place | None = None
    cure: str = ""
    around: str = ""

    def __str__(self) -> str:
        head = f"{self.place}: {self.message}" if self.place else self.message
        return f"{head}; {self.cure}" if self.cure else head


class TrainError(Exception):
    """The work failed although the input was right. Exit code 1. `told`: the user has read it already."""

    exit_code = 1
    told = False

    def __init__(self, problems: Problem | Sequence[Problem] | str, *, cure: str = "") -> None:
        if isinstance(problems, str):
            problems = Problem(problems, cure=cure)
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InputError(TrainError):
    """A recipe, a data set, a model name or an option is wrong. Exit code 2."""

    exit_code = 2


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM. No library's `except Exception` may swallow it. Exit code 130."""

    exit_code = 130


def at(path: Path | str, line: int = 0, column: int = 0) -> Place:
    """Return a place in a file."""
    return Place(str(path), line, column)


def nearest(word: str, known: Sequence[str]) -> str:
    """Return a cure for a mistyped word: the nearest known one, or all of them."""
    close = get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{on_one_line(close[0])}'?"
    return f"known here: {', '.join(map(on_one_line, sorted(known)))}"


def on_one_line(word: str) -> str:
    """Return a word of a user's file as a sentence can hold it: line breaks and the like as their escapes."""
    return word if word.isprintable() else repr(word)[1:-1]
