"""What every backend offers. Models, tokenizers and trainers are the libraries' own objects."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from strix_train.device import Device, Precision
from strix_train.devicerules import Rules
from strix_train.names import ModelName
from strix_train.recipe.adapter import Full, LowRank

if TYPE_CHECKING:
    from strix_train.lean.install import Lean


@dataclass(frozen=True, slots=True)
class Load:
    """How a model is loaded. `max_length` in tokens; `rules`: what this device needs.

    `adapter`: what is going to learn, which says what the model is held in. `whole`: this process holds every weight
    of a layer while it computes. `stored`: weights may stay of the type that their files have, in which they are
    mapped; they get another when they are cut into pieces.
    """

    model: ModelName
    device: Device
    precision: Precision
    max_length: int
    recompute: bool
    seed: int
    rules: Rules = field(default_factory=Rules)
    adapter: LowRank | Full = field(default_factory=LowRank)
    whole: bool = True
    stored: bool = False


class Backend(Protocol):
    """A way to load, adapt and train a model. Every hyperparameter reaches it explicitly.

    `lean`: what makes the layers of the adapted model lean, or None.
    """

    name: str
    version: str
    lean: Lean | None

    def load(self, wish: Load) -> tuple[Any, Any]:
        """Return the model, on its device, and its tokenizer."""

    def adapt(self, model: Any, adapter: LowRank | Full, wish: Load) -> Any:
        """Return the model with what learns: a fresh adapter, drawn from the seed, or every weight."""

    def arguments(self, common: dict[str, Any], wish: Load) -> Any:
        """Return the trainer's arguments from those that both backends share."""

    def recomputation(self, wish: Load) -> dict[str, Any]:
        """Return the arguments of any trainer that say whether activations are recomputed."""

    def trainer_class(self) -> Any:
        """Return the trainer class to build on."""

    def answering(self, model: Any) -> AbstractContextManager[None]:
        """Return a context in which the model generates; it trains again afterwards."""
