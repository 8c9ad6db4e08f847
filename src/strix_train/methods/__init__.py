"""Training methods, one module each; a module has `train(job) -> Outcome`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from strix_train.backends.base import Backend, Load
from strix_train.console import Console
from strix_train.device import Device
from strix_train.distributed.seats import Seat
from strix_train.distributed.strategy import Shared
from strix_train.distributed.together import Ranks
from strix_train.plan import Plan
from strix_train.runfolder import RunFolder
from strix_train.stopping import Stopper


@dataclass(frozen=True, slots=True)
class Job:
    """All that a method works with. `ranks`: this process among those that train together; `shared`: how they do.

    `wish.device` is where the model is loaded, which may be memory, and `device` where it is trained.
    """

    plan: Plan
    backend: Backend
    wish: Load
    device: Device
    folder: RunFolder
    console: Console
    stopper: Stopper
    resume: bool
    ranks: Ranks = field(default_factory=lambda: Ranks(Seat()))
    shared: Shared = field(default_factory=Shared)

    @property
    def rank(self) -> int:
        """The number of this process; 0 writes the run folder."""
        return self.ranks.rank

    @property
    def world(self) -> int:
        """How many processes train together."""
        return self.ranks.world

    @property
    def grouped(self) -> bool:
        """Whether this process trains in a group of processes; one alone has none."""
        return self.shared.kind != "none"


@dataclass(slots=True)
class Outcome:
    """What a method returns. `model` carries the trained adapter; `facts` go into report.json."""

    model: Any
    tokenizer: Any
    interrupted: bool
    facts: dict[str, Any] = field(default_factory=dict)


def method(name: str) -> Callable[[Job], Outcome]:
    """Return the training function of a method."""
    from importlib import import_module

    found: Callable[[Job], Outcome] = import_module(f"strix_train.methods.{name}").train
    return found
