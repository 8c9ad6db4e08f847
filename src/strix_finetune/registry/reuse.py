"""`build --from`: layers that a registry has under the key that is to be built, asked for once each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from strix_finetune.engine.base import Engine
from strix_finetune.events import Emit, Notice
from strix_finetune.model import Keyed
from strix_finetune.registry import loading, release, trust
from strix_finetune.registry.client import Registry
from strix_finetune.registry.loading import Taken
from strix_finetune.registry.release import Offer
from strix_finetune.registry.together import Check

if TYPE_CHECKING:
    from strix_finetune.supply.keyring import Trusted


@dataclass
class Source:
    """A registry to take layers of one target from. `folder`: where blobs lie until they are loaded.

    With `keys` one of them must have signed each layer that is taken.
    """

    registry: Registry
    target: str
    folder: Path
    emit: Emit
    keys: Sequence[Trusted] | None = None
    _asked: dict[str, Offer | None] = field(default_factory=dict)

    def offers(self, layer: Keyed) -> bool:
        """Whether the registry has the layer under its key, in one request.

        What it has under that name and is not that layer is told and passed over. Raises RegistryError where the
        registry cannot be asked.
        """
        if layer.key not in self._asked:
            self._asked[layer.key] = self._ask(layer)
        return self._asked[layer.key] is not None

    def take(self, layer: Keyed, engine: Engine, emit: Emit, check: Check) -> AbstractContextManager[Taken]:
        """Load a layer that is offered; it stays if it gets a name. Raises RegistryError or EngineError."""
        offer = self._asked[layer.key]
        assert offer is not None
        return loading.taken(
            engine,
            self.registry,
            offer,
            self._place(layer),
            self.folder,
            emit,
            wanted=layer,
            keys=self.keys,
            check=check,
        )

    def _ask(self, layer: Keyed) -> Offer | None:
        found = trust.look_up(self.registry, layer, self.target, config=False)
        if isinstance(found, trust.Refused):
            self.emit(Notice(f"not used: {found.why}"))
            return None
        return found

    def _place(self, layer: Keyed) -> str:
        return self.registry.repository.at(release.key_tag(layer.name, self.target, layer.key))
