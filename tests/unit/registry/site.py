"""A stack of a few bytes that was built, an engine in memory that holds it, and a registry in this process."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strix_finetune import names, tested
from strix_finetune.errors import EngineError, WorkError
from strix_finetune.events import Event, Notice
from strix_finetune.execute import Outcome, Work, execute
from strix_finetune.model import Keyed
from strix_finetune.oci.descriptor import CONFIG, LAYER_TAR, Content, Packed, canonical, digest_of, image_manifest
from strix_finetune.plan import Plan, Step, make_plan, tags_of
from strix_finetune.registry import pull
from strix_finetune.registry.client import Registry
from strix_finetune.registry.push import Push, groups_of
from strix_finetune.registry.reuse import Source
from tests.conftest import Images
from tests.fakes import FakeEngine
from tests.unit.registry_double import Double
from tests.unit.test_registry_client import registry

TARGET = "gfx1151"


@dataclass
class Store(FakeEngine):
    """An engine that knows the layers of its images and loads `docker save`'s archives as Docker does."""

    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    broken: bool = False
    own_ids: bool = False
    partial: bool = True

    def configuration(self, ref: str) -> dict[str, Any] | None:
        return self.configs.get(self.refs.get(ref, ref))

    def load(self, archive: Callable[[], Iterator[bytes]]) -> None:
        with tarfile.open(fileobj=io.BytesIO(b"".join(archive()))) as tar:
            files = {member.name: handle.read() for member in tar if (handle := tar.extractfile(member))}
        [told] = json.loads(files["manifest.json"])
        config = json.loads(files[told["Config"]])
        held = [found["rootfs"]["diff_ids"] for found in self.configs.values()]
        for number, (name, diff_id) in enumerate(zip(told["Layers"], config["rootfs"]["diff_ids"], strict=True)):
            if name in files:
                assert digest_of(files[name]) == diff_id
            elif not self.partial:
                raise EngineError("it wants all layers")
            else:
                wanted = config["rootfs"]["diff_ids"][: number + 1]
                assert any(own[: number + 1] == wanted for own in held), "a layer is missing"
        image = digest_of(files[told["Config"]])
        self.calls.append(("load", *[name for name in told["Layers"] if name in files]))
        if self.own_ids:
            image = "sha256:" + image[:6:-1]
        self.store[image] = config["config"]["Labels"]
        self.configs[image] = config | ({"rootfs": {"diff_ids": []}} if self.broken else {})
        self.refs.update(dict.fromkeys(told["RepoTags"], image))


class Site:
    """A stack of which each layer was built, and a registry."""

    def __init__(self, images: Images, served: Double) -> None:
        self.images, self.served = images, served
        self.engine = Store()
        self.waits: list[float] = []
        self.client: Registry = registry(served, waits=self.waits)
        self.events: list[Event] = []
        self.packs: list[list[str]] = []
        self.stack = images.stack()
        self._keyed: dict[str, Keyed] = {}

    @property
    def keyed(self) -> dict[str, Keyed]:
        self._keyed = self._keyed or self.images.render()
        return self._keyed

    def write(self, path: str, content: str) -> None:
        self.images.write(path, content)
        self._keyed = {}

    def build(self, engine: Store | None = None, **labels: str) -> None:
        """What a build leaves: an image for each layer, with its labels and names."""
        for name, layer in self.keyed.items():
            own = self.labels(layer) | labels
            image = (engine or self.engine).add(own, *tags_of(layer, self.images.stack()))
            rows = [node.name for node in reversed(self.stack.lineage(name))]
            config = {"config": {"Labels": own}, "rootfs": {"diff_ids": [digest_of(self.tar(row)) for row in rows]}}
            (engine or self.engine).configs[image] = config | {"os": "linux", "architecture": "amd64"}

    def labels(self, layer: Keyed) -> dict[str, str]:
        return {
            names.KEY: layer.key,
            names.LAYER: layer.name,
            names.TARGET: TARGET,
            names.CHANNEL: "debian",
            names.PARTS: json.dumps(dict(layer.parts)),
            names.TESTS: tested.label(tested.digests(self.images.stack(), layer.name)),
            f"{names.VERSION}.hip": "7.14.0+x",
        }

    def tar(self, layer: str) -> bytes:
        return f"layer {layer} {self.keyed[layer].key}".encode() * 100

    def pack(self, images: Sequence[str], folder: Path) -> Mapping[str, Packed]:
        self.packs.append([self.engine.store[image][names.LAYER] for image in images])
        made = {}
        for image in images:
            config = Content.of(CONFIG, canonical(self.engine.configs[image]))
            rows = [node.name for node in reversed(self.stack.lineage(self.engine.store[image][names.LAYER]))]
            layers = tuple(Content.of(LAYER_TAR, self.tar(row)) for row in rows)
            plain = image_manifest(config.descriptor, tuple(layer.descriptor for layer in layers), {})
            made[image] = Packed(plain, config, layers)
        return made

    def plan(self, source: Source | None = None, engine: Store | None = None, wanted: str = "") -> Plan:
        stack = self.images.stack()
        store = (engine or self.engine).images(names.KEY)
        tests = {node.name: tested.digests(stack, node.name) for node in stack.nodes}
        passed = tested.known(self.images.root / "state", stack, self.keyed.values(), store)
        offers = source.offers if source else None
        asked = (wanted or stack.final.name,)
        return make_plan(stack, self.keyed.values(), asked, store, tests=tests, passed=passed, offers=offers)

    def push(self, *, builders: bool = False, force: bool = False, day: str = "2026-11-30", **more: Any) -> list[str]:
        """Push, and return the names that the registry has then."""
        groups = groups_of(self.plan(), self.events.append, builders=builders)
        cache, state = self.images.root / "cache", self.images.root / "state"
        made = Push(
            self.client,
            self.engine,
            self.images.stack(),
            state,
            cache,
            self.pack,
            self.events.append,
            f"{day}T01:02:03Z",
            force=force,
            **more,
        )
        made.run(groups)
        return sorted(self.served.tags("a/b"))

    def source(self, engine: Store) -> Source:
        return Source(self.client, TARGET, self.images.root / "pulls", self.events.append)

    def pull(self, engine: Store) -> str:
        found = pull.find(self.client, TARGET, TARGET, ("cpu", TARGET))
        return pull.pull(engine, self.client, found, TARGET, self.images.root / "pulls", self.events.append).id

    def build_from(self, engine: Store) -> tuple[Plan, Mapping[str, Outcome]]:
        source = self.source(engine)
        plan = self.plan(source, engine)

        @contextmanager
        def take(step: Step, emit: Any, check: Any) -> Iterator[tuple[str, bool]]:
            with source.take(step.layer, engine, emit, check) as taken:
                yield taken.image, False

        def build(step: Step, emit: Any) -> Any:
            raise WorkError("this test builds nothing")

        work = Work(build, lambda step, image, emit: (), lambda step: "log", pull=take)
        return plan, execute(plan, engine, work, self.events.append)

    def heard(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, Notice)]


def key_tags(site: Site, *layers: str) -> set[str]:
    return {f"{name}-{TARGET}-{site.keyed[name].key[:12]}" for name in layers}
