"""Training methods, one module each; a module has `train(job) -> Outcome`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from strix_train.backends.base import Backend, Load
from strix_train.console import Console
from strix_train.device import Device
from strix_train.plan import Plan
from strix_train.runfolder import RunFolder
from strix_train.stopping import Stopper


@dataclass(frozen=True, slots=True)
class Job:
    """All that a method works with. `rank` 0 writes the run folder; `world` processes train together."""

    plan: Plan
    backend: Backend
    wish: Load
    device: Device
    folder: RunFolder
    console: Console
    stopper: Stopper
    resume: bool
    rank: int = 0
    world: int = 1


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
