"""`push`: tested images by key, then the index of the release, then the names that people type.

A name moves only when all that it stands for is there and was read back: a push that ends early leaves none.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strix_finetune import names, tested
from strix_finetune.engine.base import Engine, Image
from strix_finetune.errors import InputError, Problem, WorkError
from strix_finetune.events import Emit, LayerDone, LayerStarted, Notice, Pushed
from strix_finetune.model import Keyed, Stack
from strix_finetune.oci.descriptor import INDEX, MANIFEST, Descriptor, Packed
from strix_finetune.plan import Plan, Reuse
from strix_finetune.registry import moves, release, trust
from strix_finetune.registry.client import Registry
from strix_finetune.registry.known import Known
from strix_finetune.registry.release import Offer

# writes images (references of the engine, the last one on all before it) into a folder, ready for a registry
Pack = Callable[[Sequence[str], Path], Mapping[str, Packed]]


@dataclass(frozen=True, slots=True)
class Item:
    """A layer of the stack whose image goes to the registry."""

    layer: Keyed
    image: str

    @property
    def name(self) -> str:
        return self.layer.name


@dataclass(frozen=True)
class Push:
    """One push. `day`: ISO 8601, UTC; `created`: the same to the second; `revision`: of the definitions, or empty.

    `force`: also take names over that another channel's release has.
    """

    registry: Registry
    engine: Engine
    stack: Stack
    state: Path
    cache: Path
    pack: Pack
    emit: Emit
    created: str
    revision: str = ""
    default: bool = False
    force: bool = False
    known: Known = field(init=False)
    blobs: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", Known(self.state, self.registry.repository))

    def run(self, groups: Sequence[Sequence[Item]]) -> Pushed:
        """Push groups of images, each on those before it in its group; the first group's last is the final image.

        Raises RegistryError, EngineError, or InputError where a name belongs to another channel's release.
        """
        began = time.monotonic()
        final = groups[0][-1]
        labels = self._image(final).labels
        self._check_names()
        there: dict[str, Descriptor] = {}
        sent = 0
        try:
            for items in groups:
                sent += self._push_group(items, there)
        finally:
            self.known.save()
        index, tags = self._release([*reversed(groups[0])], there, final, labels)
        result = Pushed(str(self.registry.repository), tags, index.digest, sent, time.monotonic() - began)
        self.emit(result)
        return result

    def _check_names(self) -> None:
        """Whether the names that move are free or this channel's: another one's image is another product."""
        name = self.stack.target.id
        held = self.registry.manifest(name)
        if held is None or self.force:
            return
        try:
            channel = release.read_release(held).annotations.get(names.CHANNEL, "")
        except ValueError:
            channel = ""
        if channel != self.stack.channel.name:
            whose = f"of the channel {channel}" if channel else "not by this program"
            raise InputError(
                Problem(
                    f"{self.registry.repository.at(name)} is a release {whose}",
                    cure="push to another repository, or add --force to replace it",
                )
            )

    def _push_group(self, items: Sequence[Item], there: dict[str, Descriptor]) -> int:
        """Push what the registry lacks of a group; `there` learns where everything is. Returns the bytes sent."""
        lacking = []
        for item in items:
            held = trust.look_up(self.registry, item.layer, self.stack.target.id, config=True)
            if isinstance(held, Offer):
                there[item.name] = held.manifest
                self.emit(Notice(f"{item.name}: {self._place(item)} is there already"))
                continue
            lacking.append(item)
            if held is not None:
                self.emit(Notice(f"replaced: {held.why}"))
        if not lacking:
            return 0
        below = items[: items.index(lacking[-1]) + 1]
        sent = 0
        self.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="push-", dir=self.cache) as folder:
            packed = self.pack([item.image for item in below], Path(folder))
            for item in lacking:
                descriptor, size = self._push_one(item, packed[item.image])
                there[item.name] = descriptor
                sent += size
        return sent

    def _push_one(self, item: Item, packed: Packed) -> tuple[Descriptor, int]:
        began = time.monotonic()
        self.emit(LayerStarted(item.name, self._place(item), "", "push"))
        size = moves.send(self.registry, packed.blobs, item.name, self.emit, self.known, self.blobs)
        manifest = release.annotated(packed, item.layer, self.stack.target.id, self.stack.channel.name)
        made = self.registry.put_manifest(self._tag(item), manifest, MANIFEST)
        self.emit(LayerDone(item.name, "pushed", time.monotonic() - began, item.image, size))
        return made, size

    def _release(
        self, items: Sequence[Item], there: Mapping[str, Descriptor], final: Item, labels: Mapping[str, str]
    ) -> tuple[Descriptor, tuple[str, ...]]:
        """Put the index of the release, and then its names."""
        version = release.version_of(labels)
        target, channel = self.stack.target.id, self.stack.channel.name
        annotations = {
            names.TARGET: target,
            names.CHANNEL: channel,
            names.KEY: final.layer.key,
            names.DEVICE_TESTS: tested.device_state(self.state, self.stack, final.layer, final.image),
            "org.opencontainers.image.version": version,
            release.CREATED: self.created,
            release.REVISION: self.revision,
        }
        rows = [
            Descriptor(
                MANIFEST,
                there[item.name].digest,
                there[item.name].size,
                {names.LAYER: item.name, names.KEY: item.layer.key},
            )
            for item in items
        ]
        index = release.make_index(rows, {name: text for name, text in annotations.items() if text})
        before = self.registry.manifest(target)
        if before is not None and before.media_type == INDEX and release.same_release(before.content, index):
            index = before.content
        made = self.registry.put_manifest(Descriptor.of(INDEX, index).digest, index, INDEX)
        tags = release.human_tags(target, version, self.created.partition("T")[0], default=self.default)
        for tag in tags:
            held = self.registry.manifest(tag)
            if held is None or held.digest != made.digest:
                self.registry.put_manifest(tag, index, INDEX)
        return made, tags

    def _image(self, item: Item) -> Image:
        found = self.engine.image(item.image)
        if found is None:
            raise WorkError(f"the image of {item.name} is gone", cure="run 'strix-finetune build'")
        return found

    def _tag(self, item: Item) -> str:
        return release.key_tag(item.name, self.stack.target.id, item.layer.key)

    def _place(self, item: Item) -> str:
        return self.registry.repository.at(self._tag(item))


def groups_of(plan: Plan, emit: Emit, *, builders: bool = False) -> list[list[Item]]:
    """What of a plan goes to a registry: the final image with the layers below it, each if it passed its tests.

    With `builders` also the layers that are only built with, each with what is below it. Raises WorkError where the
    final image is not up to date or has not passed its tests of today.
    """
    final = plan.step(plan.stack.final.name)
    if not isinstance(final.action, Reuse):
        raise WorkError("the final image is not up to date", cure="run 'strix-finetune build' first")
    if final.action.retest:
        raise WorkError(f"the final image is {final.action.reason}", cure="run 'strix-finetune build' first")
    heads = [final.name]
    if builders:
        lineage = {node.name for node in plan.stack.lineage(final.name)}
        needed = {name for node in plan.stack.nodes for name in node.builders}
        heads += [node.name for node in plan.stack.nodes if node.name in needed - lineage]
    return [group for head in heads if (group := _group(plan, head, emit))]


def _group(plan: Plan, head: str, emit: Emit) -> list[Item]:
    """A layer and those below it, the lowest first. What is not here, or failed, is left out."""
    items = []
    for node in reversed(plan.stack.lineage(head)):
        step = plan.step(node.name)
        if not isinstance(step.action, Reuse):
            continue
        if step.action.retest:
            emit(Notice(f"{node.name} is not pushed: {step.action.reason}; 'strix-finetune build' tests it again"))
            continue
        items.append(Item(step.layer, step.action.image))
    return items if items and items[-1].name == head else []
