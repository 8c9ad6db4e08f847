"""What the work on this host will ask for: room for its images, and the addresses that its configuration names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from strix_finetune import budget, names
from strix_finetune.doctor.edges import Address, ask
from strix_finetune.errors import StrixError
from strix_finetune.model import Stack
from strix_finetune.netconf import Flags, NetSettings, collect
from strix_finetune.registry import repository
from strix_finetune.toolbx.renew import REGISTRY
from strix_finetune.workspace import Options, open_workspace

# where models come from unless HF_ENDPOINT says otherwise
_HUB = "https://huggingface.co"


class Wants:
    """Of one target and channel, empty for what a build would choose."""

    def __init__(self, images: Path, target: str, channel: str, env: Mapping[str, str]) -> None:
        self._options = Options(target=target, channel=channel, images=images)
        self._env = env

    def budget(self) -> int:
        """Bytes that the layers may add, all together; 0 where the definitions cannot be read, which a build says."""
        if self._stack is None:
            return 0
        budgets = [budget.of(node, self._stack.channel) for node in self._stack.nodes]
        return sum(found.size for found in budgets if found)

    def toolbox(self) -> str:
        """The name of the image that `strix-finetune toolbox create` would take here."""
        return names.final_ref(self._stack.target.id) if self._stack else ""

    def addresses(self) -> Sequence[Address]:
        """Raises InputError for settings of this host that cannot be right."""
        found = [
            ("Debian mirror", self._settings.debian_mirror, "building"),
            ("package index", self._settings.indexes.default, "building"),
        ]
        if self._stack:
            channel = self._stack.channel
            for name, index in channel.spec.indexes.items():
                url = self._settings.index_url(name) or index.url
                found.append((f"index {name}", url, f"the channel {channel.name}"))
            if channel.spec.bootstrap.image:
                where, tag = repository.of_image(channel.spec.bootstrap.image)
                found.append(("registry", where.url(f"manifests/{tag}"), f"the channel {channel.name}"))
        if named := self._env.get(REGISTRY):
            found.append(("registry", repository.parse(named).root + "/v2/", "pulling and pushing images"))
        if self._env.get("HF_HUB_OFFLINE", "") in ("", "0"):
            found.append(("model hub", self._env.get("HF_ENDPOINT") or _HUB, "downloading models"))
        return [entry for entry in found if entry[1].startswith(("http://", "https://"))]

    def ask(self, url: str) -> str:
        return ask(url, self._settings)

    @cached_property
    def _settings(self) -> NetSettings:
        return collect(self._env, Flags())

    @cached_property
    def _stack(self) -> Stack | None:
        try:
            return open_workspace(self._options, self._env).stack
        except StrixError:
            return None
