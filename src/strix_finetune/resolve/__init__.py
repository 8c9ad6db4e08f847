"""Answers from outside, for the lock: what Debian's archive, the package index and a registry have today."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from strix_finetune.lockmodel import AptPackage, Release
from strix_finetune.schema import Apt


@dataclass(frozen=True, slots=True)
class AptAnswer:
    """What the archive says. `releases`: suite → its signed Release file.

    `candidates`: requested name → what apt would install, pins respected. `served`: requested name → version → package,
    for every version that the suites have. `unknown`: requested name that cannot be installed → what to do about it.
    """

    releases: Mapping[str, Release]
    candidates: Mapping[str, AptPackage]
    served: Mapping[str, Mapping[str, AptPackage]] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)


class AptResolver(Protocol):
    """Asks Debian's archive. Signatures are always verified."""

    def ask(self, names: Collection[str], apt: Apt) -> AptAnswer:
        """Look the names up in the suites of `apt`; raises FetchFailed where the archive gives no trusted answer."""
