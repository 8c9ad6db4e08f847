"""Where a run's numbers go besides metrics.jsonl: TensorBoard, trackio, Weights & Biases. None is ever needed.

Names of projects come from the recipe; tokens only from the environment of the user.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from strix_train.errors import InputError, Problem
from strix_train.recipe.schema import Logging
from strix_train.runfolder import RunFolder


class Tracker(Protocol):
    """Takes numbers and texts by step."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of one step."""

    def texts(self, step: int, values: Mapping[str, str]) -> None:
        """Take texts, by what they answer."""

    def close(self) -> None:
        """Write down what is left."""


class TensorBoard:
    """Event files in the run folder. Steps after `began` of an earlier process are hidden: they are done again."""

    def __init__(self, folder: RunFolder, began: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        events = folder.path / "tensorboard"
        self._writer = SummaryWriter(str(events), purge_step=began + 1 if began or events.exists() else None)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        # a killed run shows what it did
        self._writer.flush()

    def texts(self, step: int, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            self._writer.add_text(name, value, step)

    def close(self) -> None:
        self._writer.close()


class Online:
    """trackio and wandb have the same three calls."""

    def __init__(self, module: Any, **how: Any) -> None:
        self._module = module
        module.init(**how)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._module.log(dict(values), step=step)

    def texts(self, step: int, values: Mapping[str, str]) -> None:
        """Texts stay in samples.jsonl: tables differ between the two, and between their versions."""

    def close(self) -> None:
        self._module.finish()


def check(wish: Logging) -> None:
    """Raise InputError where a tracker was asked for that is not installed. Imports none."""
    lacking = [name for name in wish.to if find_spec(name) is None]
    if lacking:
        cure = "install it, or take it out of logging.to"
        raise InputError(
            [Problem(f"logging to {name} needs the package {name}, which is not here", cure=cure) for name in lacking]
        )


def start(wish: Logging, folder: RunFolder, name: str, config: Mapping[str, Any], began: int) -> Sequence[Tracker]:
    """Return the trackers that the recipe asks for. `name`: of the recipe; `began`: the step that was resumed from."""
    found: list[Tracker] = []
    how: dict[str, Any] = {"project": wish.project or name, "name": folder.path.name, "config": dict(config)}
    if "tensorboard" in wish.to:
        found.append(TensorBoard(folder, began))
    if "trackio" in wish.to:
        import trackio

        found.append(Online(trackio, **how, resume="allow" if began else "never"))
    if "wandb" in wish.to:
        import wandb

        # the same folder is the same run: a resumed one goes on in its own curves
        same = hashlib.sha256(str(folder.path).encode()).hexdigest()[:16]
        found.append(Online(wandb, **how, id=same, dir=str(folder.path), resume="allow"))
    return found
