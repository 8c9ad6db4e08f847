"""Faults of rows: collected, told together with the text around them, or, on request, left out and counted."""

from __future__ import annotations

from typing import Any, Protocol

from strix_train.errors import InputError, Place, Problem, at

SHOWN = 20


class Record(Protocol):
    """One row as its file holds it: an object, and where it and its parts stand."""

    value: dict[str, Any]

    def place(self, *keys: str | int) -> Place:
        """Return the place of the value under `keys`, or of the innermost one that exists."""

    def around(self, *keys: str | int) -> str:
        """Return the text around that place, on one line; '' where a file has no text."""


class Faults:
    """Collects problems; stops the reading when there are many, and raises them together.

    With `skip`, rows with faults are only counted (`skipped`), and the first problems are kept to be told.
    """

    def __init__(self, *, skip: bool = False) -> None:
        self.problems: list[Problem] = []
        self.skip = skip
        self.skipped = 0

    def add(self, message: str, place: Place, cure: str = "", around: str = "") -> None:
        """Note one fault, which costs its row. Raises InputError when SHOWN of them have been seen."""
        self.skipped += 1
        if self.skip and len(self.problems) >= SHOWN:
            return
        self.problems.append(Problem(message, place, cure, around))
        if len(self.problems) >= SHOWN and not self.skip:
            self.problems.append(
                Problem(f"stopped looking after {SHOWN} faults", at(place.source), "data.faulty: skip leaves them out")
            )
            raise InputError(self.problems)

    def of(self, record: Record, keys: tuple[str | int, ...], message: str, cure: str = "") -> None:
        """Note one fault of a row, at the value under `keys`."""
        if self.skip and len(self.problems) >= SHOWN:
            self.skipped += 1
            return
        self.add(message, record.place(*keys), cure, record.around(*keys))

    def settle(self) -> None:
        """Raise InputError if any fault was noted that may not be skipped."""
        if self.problems and not self.skip:
            raise InputError(self.problems)
