"""Push, pull and reuse by key: a registry in this process, an engine in memory, images of a few bytes."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from strix_finetune import key as keys
from strix_finetune import names, tested
from strix_finetune.errors import EngineError, InputError, StrixError, WorkError
from strix_finetune.events import BlobProgress, Event, LayerDone, LayerStarted, Notice
from strix_finetune.execute import Failed, Outcome, Pulled, Work, execute
from strix_finetune.model import Keyed
from strix_finetune.oci.descriptor import (
    CONFIG,
    INDEX,
    LAYER_TAR,
    MANIFEST,
    Content,
    Packed,
    canonical,
    digest_of,
    image_manifest,
)
from strix_finetune.plan import Plan, Pull, Step, make_plan, tags_of
from strix_finetune.registry import pull, release
from strix_finetune.registry.client import Registry
from strix_finetune.registry.faults import RegistryError, Unreachable, Untrusted
from strix_finetune.registry.push import Push, groups_of
from strix_finetune.registry.reuse import Source
from strix_finetune.supply import attached, envelope, keyring
from strix_finetune.supply.statement import Statement
from tests.conftest import Images
from tests.fakes import FakeEngine
from tests.unit.registry_double import Double, double, times
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


@pytest.fixture
def site(chain: Images) -> Iterator[Site]:
    chain.write("images/app/layer.toml", (chain.path / "app/layer.toml").read_text() + SMOKE)
    chain.write("images/app/smoke/it.sh", "#!/bin/sh\n", executable=True)
    with double() as served:
        made = Site(chain, served)
        made.build()
        yield made


SMOKE = '[[smoke]]\nfile = "smoke/it.sh"\n[[smoke]]\nfile = "smoke/gpu.sh"\nkind = "device"\n'


@pytest.fixture(autouse=True)
def _gpu_test(chain: Images) -> None:
    chain.write("images/app/smoke/gpu.sh", "#!/bin/sh\n", executable=True)


def key_tags(site: Site, *layers: str) -> set[str]:
    return {f"{name}-{TARGET}-{site.keyed[name].key[:12]}" for name in layers}


def test_a_release_has_names_for_machines_and_for_people(site: Site) -> None:
    found = site.push(default=True, revision="c0ffee")
    people = {TARGET, "gfx1151-20261130", "gfx1151-7.14.0-x", "latest"}
    assert set(found) == people | key_tags(site, "base", "rccl", "torch", "app")
    kind, content = site.served.manifests["a/b", TARGET]
    index = json.loads(content)
    assert kind == INDEX
    assert index["annotations"] == {
        names.TARGET: TARGET,
        names.CHANNEL: "debian",
        names.KEY: site.keyed["app"].key,
        names.DEVICE_TESTS: "not-run",
        "org.opencontainers.image.version": "7.14.0+x",
        "org.opencontainers.image.created": "2026-11-30T01:02:03Z",
        "org.opencontainers.image.revision": "c0ffee",
    }
    assert [row["annotations"][names.LAYER] for row in index["manifests"]] == ["app", "torch", "rccl", "base"]
    assert [row["platform"]["os"] for row in index["manifests"]] == ["linux", *["unknown"] * 3]
    assert all(site.served.manifests["a/b", tag] == (kind, content) for tag in people)
    manifest = json.loads(site.served.manifests["a/b", index["manifests"][0]["digest"]][1])
    assert keys.key_of(manifest["annotations"][names.INPUTS]) == site.keyed["app"].key


def test_a_second_push_sends_and_packs_nothing(site: Site) -> None:
    site.push()
    sent, packs = site.served.sent, len(site.packs)
    site.served.log.clear()
    site.push(revision="another")
    assert site.served.sent - sent < 2000
    assert len(site.packs) == packs == 1
    assert not site.served.requests("POST")
    index = json.loads(site.served.manifests["a/b", TARGET][1])
    assert "org.opencontainers.image.revision" not in index["annotations"]
    # nor does the next day move a name
    before = site.served.manifests["a/b", TARGET]
    assert "gfx1151-20261201" in site.push(day="2026-12-01")
    assert site.served.manifests["a/b", TARGET] == before


def test_a_change_at_the_top_moves_the_top(site: Site) -> None:
    site.push()
    site.write("python/strix_train/run.py", "print(2)\n")
    site.build()
    before = site.served.sent
    blobs = set(site.served.blobs)
    site.push()
    new = set(site.served.blobs) - blobs
    assert {digest_of(site.tar("app"))} < new
    assert len(new) == 2
    assert site.served.sent - before < 20_000


def test_builders_go_along_when_they_are_asked_for(site: Site) -> None:
    assert not key_tags(site, "devel") & set(site.push())
    assert key_tags(site, "devel") <= set(site.push(builders=True))
    assert site.packs == [["base", "rccl", "torch", "app"], ["base", "devel"]]


def test_nothing_of_which_the_tests_are_not_those_of_today(site: Site) -> None:
    site.write("images/app/smoke/it.sh", "#!/bin/sh\nexit 1\n")
    with pytest.raises(WorkError, match=r"smoke test app/it\.sh changed; run 'strix-finetune build' first"):
        site.push()
    assert site.served.log == []


def test_results_of_device_tests_are_told_apart(site: Site) -> None:
    from strix_finetune.events import SmokeResult

    def result(state: Any) -> None:
        image = site.engine.refs[names.final_ref(TARGET)]
        results = [SmokeResult("app", "app/gpu.sh", "device", state, "")]
        tested.record(site.images.root / "state", site.images.stack(), site.keyed["app"], image, results)

    for state in ("passed", "failed", "not-run"):
        result(state)
        site.push()
        index = json.loads(site.served.manifests["a/b", TARGET][1])
        assert index["annotations"][names.DEVICE_TESTS] == state
    assert len(site.packs) == 1


def test_blobs_of_another_repository_are_mounted(site: Site) -> None:
    site.push()
    site.client = registry(site.served, path="other")
    sent = site.served.sent
    site.push()
    assert site.served.sent - sent < 20_000
    moved = {event.state for event in site.events if isinstance(event, BlobProgress)}
    # on a slow machine some are seen on their way
    assert moved - {"moving"} == {"sent", "mounted"}
    assert len([event for event in site.events if isinstance(event, BlobProgress) and event.state == "sent"]) == 8


def test_another_channels_release_is_not_replaced(site: Site) -> None:
    site.push()
    index = json.loads(site.served.manifests["a/b", TARGET][1])
    index["annotations"][names.CHANNEL] = "amd"
    site.served.manifests["a/b", TARGET] = (INDEX, canonical(index))
    with pytest.raises(InputError, match="is a release of the channel amd; push to another repository"):
        site.push()
    site.served.manifests["a/b", TARGET] = ("application/x", b"{}")
    with pytest.raises(InputError, match="is a release not by this program"):
        site.push()
    site.push(force=True)
    assert json.loads(site.served.manifests["a/b", TARGET][1])["annotations"][names.CHANNEL] == "debian"


@pytest.mark.parametrize("what", ["PUT /v2/a/b/blobs", "PUT /v2/a/b/manifests/app", "PUT /v2/a/b/manifests/sha256"])
def test_a_push_that_fails_moves_no_name_that_people_type(site: Site, what: str) -> None:
    site.served.faults = [times(1, 507, what)]
    with pytest.raises(RegistryError, match="as ordered"):
        site.push()
    assert not {tag for tag in site.served.tags("a/b") if tag.startswith(TARGET)}
    assert list((site.images.root / "cache").iterdir()) == []
    site.push()
    assert TARGET in site.served.tags("a/b")


def test_a_registry_that_dies_in_the_middle_goes_on_where_it_was(site: Site) -> None:
    site.served.faults = [times(99, 503, "PUT /v2/a/b/manifests/torch")]
    with pytest.raises(Unreachable, match="HTTP 503; try again: what is whole is not sent twice"):
        site.push()
    assert site.waits == sorted(site.waits)
    site.served.faults = []
    site.served.log.clear()
    site.push()
    done = [event.layer for event in site.events if isinstance(event, LayerDone)]
    assert done == ["base", "rccl", "torch", "app"]


def test_a_pulled_image_has_the_names_of_a_built_one(site: Site) -> None:
    site.push()
    engine = Store()
    image = site.pull(engine)
    assert {ref for ref, held in engine.refs.items() if held == image} == set(tags_of(site.keyed["app"], site.stack))
    assert site.plan(engine=engine).step("app").action.reason == "up to date"
    assert "tests on a GPU" in "".join(site.heard())
    assert not [path for path in (site.images.root / "pulls").iterdir() if path.is_dir()]
    before = len(site.served.requests("GET"))
    assert site.pull(engine) == image
    # the index, the manifest, the configuration
    assert len(site.served.requests("GET")) == before + 3


def test_layers_that_the_engine_has_are_not_fetched(site: Site) -> None:
    site.push()
    site.write("python/strix_train/run.py", "print(2)\n")
    engine = Store()
    site.build(engine)
    site.served.log.clear()
    site.pull(engine)
    fetched = {line.rpartition("/")[2] for line in site.served.requests("GET") if "/blobs/" in line}
    assert len(fetched) == 2
    assert [call for call in engine.calls if call[0] == "load"] == [("load", "3.tar")]


def test_an_engine_that_keeps_images_in_its_own_way(site: Site) -> None:
    """Ids that are no digests of configurations, and no layer may be missing."""
    site.push()
    site.write("python/strix_train/run.py", "print(2)\n")
    engine = Store(own_ids=True, partial=False)
    site.build(engine)
    image = site.pull(engine)
    assert engine.refs[names.final_ref(TARGET)] == image
    assert [call for call in engine.calls if call[0] == "load"] == [("load", "0.tar", "1.tar", "2.tar", "3.tar")]
    assert not any("/pulled:" in ref for ref in engine.refs)
    before = len(engine.calls)
    assert site.pull(engine) == image
    assert "load" not in {call[0] for call in engine.calls[before:]}


def edit(site: Site, change: Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], None]) -> None:
    """Change index, manifest and configuration of the final image, with all digests set right again."""
    index = json.loads(site.served.manifests["a/b", TARGET][1])
    row = index["manifests"][0]
    kind, content = site.served.manifests["a/b", row["digest"]]
    manifest = json.loads(content)
    config = json.loads(site.served.blobs[manifest["config"]["digest"]])
    change(index, manifest, config)
    body = canonical(config)
    site.served.blobs[digest_of(body)] = body
    site.served.links.add(("a/b", digest_of(body)))
    manifest["config"] |= {"digest": digest_of(body), "size": len(body)}
    content = canonical(manifest)
    row |= {"digest": digest_of(content), "size": len(content)}
    [tag] = key_tags(site, "app")
    for reference in (digest_of(content), tag):
        site.served.manifests["a/b", reference] = (kind, content)
    site.served.manifests["a/b", TARGET] = (INDEX, canonical(index))


Change = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], None]


def label(name: str, value: str) -> Change:
    return lambda index, manifest, config: config["config"]["Labels"].update({name: value})


def annotation(name: str, value: str) -> Change:
    return lambda index, manifest, config: manifest["annotations"].update({name: value})


def more_parts(index: dict[str, Any], manifest: dict[str, Any], config: dict[str, Any]) -> None:
    parts = json.loads(config["config"]["Labels"][names.PARTS])
    config["config"]["Labels"][names.PARTS] = json.dumps(parts | {"apt openssl": "1"})


def other_target(index: dict[str, Any], manifest: dict[str, Any], config: dict[str, Any]) -> None:
    for told in (index["annotations"], manifest["annotations"], config["config"]["Labels"]):
        told[names.TARGET] = "cpu"


FORGED = [
    (label(names.PARTS, "{}"), r"has a label io\.strix-finetune\.parts that its key was not made of"),
    (more_parts, r"has a label io\.strix-finetune\.parts that its key was not made of"),
    (label(names.KEY, "0" * 64), r"has the label io\.strix-finetune\.key=0000"),
    (label(names.LAYER, "base"), r"has the label io\.strix-finetune\.layer=base"),
    (label(names.CHANNEL, "amd"), r"has the label io\.strix-finetune\.channel=amd"),
    (label(names.TESTS, "none"), "does not say which smoke tests"),
    (annotation(names.INPUTS, ""), "says nothing of inputs"),
    (annotation(names.INPUTS, "{}"), "its recorded inputs make another one"),
    (lambda index, manifest, config: config["rootfs"]["diff_ids"].pop(), "with 3 layers, and its manifest has 4"),
    (lambda index, manifest, config: config.update(os="windows"), "is for windows/amd64"),
    (lambda index, manifest, config: config.pop("rootfs"), "has a configuration that cannot be read"),
]


@pytest.mark.parametrize(("change", "words"), FORGED)
def test_forged_images_are_neither_pulled_nor_built_on(site: Site, change: Change, words: str) -> None:
    site.push()
    edit(site, change)
    engine = Store()
    with pytest.raises(Untrusted, match=words):
        site.pull(engine)
    assert not engine.store
    plan, outcomes = site.build_from(engine)
    if isinstance(plan.step("app").action, Pull):
        outcome = outcomes["app"]
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, Untrusted)
    else:
        assert "not used: " in "".join(site.heard())
    assert not any("/app:" in ref for ref in engine.refs)


@pytest.mark.parametrize("kind", [MANIFEST, INDEX])
def test_what_is_no_image_is_neither_built_on_nor_left_there(site: Site, kind: str) -> None:
    before = site.push()
    [tag] = key_tags(site, "app")
    right = site.served.manifests["a/b", tag]
    site.served.manifests["a/b", tag] = (kind, b"{}")
    plan, _ = site.build_from(Store())
    assert not isinstance(plan.step("app").action, Pull)
    words = "its manifest cannot be read (KeyError)" if kind == MANIFEST else "it is not the manifest of an image"
    place = f"{site.client.repository.at(tag)} cannot be used: {words}"
    assert f"not used: {place}" in site.heard()
    assert site.push() == before
    assert f"replaced: {place}" in site.heard()
    assert site.served.manifests["a/b", tag] == right


@pytest.mark.parametrize(("change", "words"), FORGED)
def test_a_push_replaces_what_was_forged(site: Site, change: Change, words: str) -> None:
    site.push()
    [tag] = key_tags(site, "app")
    right = site.served.manifests["a/b", tag]
    edit(site, change)
    assert site.served.manifests["a/b", tag] != right
    site.push()
    [told] = [line for line in site.heard() if line.startswith("replaced: ")]
    assert re.search(words, told)
    assert site.served.manifests["a/b", tag] == right


def test_an_image_of_another_target_or_channel(site: Site) -> None:
    site.push()
    edit(site, other_target)
    with pytest.raises(Untrusted, match="it is made for cpu, not gfx1151"):
        site.pull(Store())


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        (INDEX, b"[]", "cannot be read"),
        (INDEX, b'{"manifests": []}', "was not pushed by strix-finetune"),
        ("application/vnd.oci.image.manifest.v1+json", b"{}", "is not an index of a release"),
        (INDEX, b"\0", "cannot be used"),
    ],
)
def test_what_is_no_release(site: Site, kind: str, content: bytes, words: str) -> None:
    site.served.manifests["a/b", TARGET] = (kind, content)
    with pytest.raises(Untrusted, match=words):
        site.pull(Store())


def test_a_target_that_is_not_there_is_told_with_those_that_are(site: Site) -> None:
    with pytest.raises(InputError, match="has no image for gfx1151; check the name of the repository"):
        site.pull(Store())
    site.served.manifests["a/b", "cpu"] = (INDEX, b"{}")
    with pytest.raises(InputError, match="has no image for gfx1151; it has images for cpu: name one"):
        site.pull(Store())


def test_an_engine_that_loads_something_else_is_seen(site: Site) -> None:
    site.push()
    engine = Store(broken=True)
    with pytest.raises(StrixError, match="as another image than it is"):
        site.pull(engine)
    assert not engine.refs


def test_an_empty_engine_pulls_and_builds_nothing(site: Site) -> None:
    site.push()
    site.served.log.clear()
    engine = Store()
    plan, outcomes = site.build_from(engine)
    assert {step.name: type(step.action).__name__ for step in plan.steps} == {
        "base": "NotNeeded",
        "devel": "NotNeeded",
        "rccl": "NotNeeded",
        "torch": "NotNeeded",
        "app": "Pull",
    }
    assert isinstance(outcomes["app"], Pulled)
    assert set(engine.refs) == set(tags_of(site.keyed["app"], site.stack))
    # one question; then the configuration and the layers
    assert len([line for line in site.served.requests("GET") if "/manifests/" in line]) == 1


def test_each_layer_is_asked_for_once_at_most(site: Site) -> None:
    site.push()
    site.write("python/strix_train/run.py", "print(2)\n")
    site.write("images/torch/files/new", "x")
    site._keyed = {}
    site.images.layer(
        "torch", 'parent = ["rccl", "base"]\n', "FROM {{ parent }}\nCOPY files/new /new\nRUN make torch\n"
    )
    site.served.log.clear()
    engine = Store()
    source = site.source(engine)
    plan = site.plan(source, engine)
    assert {step.name: type(step.action).__name__ for step in plan.steps} == {
        "base": "NotNeeded",
        "devel": "NotNeeded",
        "rccl": "Pull",
        "torch": "Build",
        "app": "Build",
    }
    assert len(site.served.log) == 3
    site.plan(source, engine)
    assert len(site.served.log) == 3


def test_what_is_here_is_not_asked_for(site: Site) -> None:
    site.push()
    site.served.log.clear()
    site.build_from(site.engine)
    assert site.served.log == []


def test_a_registry_that_cannot_be_asked_ends_the_plan(site: Site) -> None:
    site.served.faults = [times(99, 503)]
    with pytest.raises(Unreachable):
        site.plan(site.source(Store()), Store())


def test_a_blob_that_was_changed_fails_that_layer(site: Site) -> None:
    site.push()
    site.served.blobs[digest_of(site.tar("app"))] = site.tar("app")[:-1] + b"x"
    engine = Store()
    _, outcomes = site.build_from(engine)
    outcome = outcomes["app"]
    assert isinstance(outcome, Failed)
    assert "is not what its digest says" in str(outcome.error)
    assert not engine.refs
    started = [event.action for event in site.events if isinstance(event, LayerStarted)]
    assert started[-1] == "pull"


def test_versions_fit_into_tags() -> None:
    assert release.human_tags("cpu", "2.13.0+cpu~x", "2026-01-02", default=False) == (
        "cpu-20260102",
        "cpu-2.13.0-cpu-x",
        "cpu",
    )
    assert release.human_tags("cpu", "", "2026-01-02", default=True) == ("cpu-20260102", "cpu", "latest")


def signed(site: Site, folder: Path, *digests: str) -> Path:
    """Attach a statement about digests to the final image, signed with the key of a folder; returns the public key."""
    signer = keyring.own(folder)
    said = Statement({str(number): digest for number, digest in enumerate(digests)}, "of a test", {})
    offer = pull.find(site.client, TARGET, TARGET).offer
    attached.attach(site.client, offer.manifest, [(said.kind, envelope.sign(said, signer))])
    return folder / keyring.OWN_PUBLIC


def test_only_what_a_trusted_key_has_signed(site: Site, tmp_path: Path) -> None:
    site.push()
    found = pull.find(site.client, TARGET, TARGET)
    engine, folder = Store(), site.images.root / "pulls"
    both = (found.offer.manifest.digest, found.offer.config.digest)
    mine = signed(site, tmp_path / "mine", *both)
    # who may write to a registry may attach what he likes
    signed(site, tmp_path / "theirs", *both)
    partly = signed(site, tmp_path / "partly", both[1], "sha256:" + "0" * 64)
    nobody = signed(site, tmp_path / "nobody")

    def pull_with(*files: Path) -> str:
        keys = keyring.trusted(tmp_path, files)
        return pull.pull(engine, site.client, found, TARGET, folder, site.events.append, keys).id

    for file in (partly, nobody):
        with pytest.raises(Untrusted, match="is not signed by a key that is trusted here"):
            pull_with(file)
    assert not engine.store
    assert pull_with(nobody, mine) == both[1]
    assert any("is signed by " in text and "signing.pub" in text for text in site.heard())


def test_a_build_takes_no_layer_that_nobody_trusted_signed(site: Site, tmp_path: Path) -> None:
    site.push()
    key = signed(site, tmp_path / "mine", "sha256:" + "0" * 64)
    engine = Store()
    source = site.source(engine)
    source.keys = keyring.trusted(tmp_path, [key])
    layer = site.keyed["app"]
    assert source.offers(layer)
    with (
        pytest.raises(Untrusted, match="is not signed"),
        source.take(layer, engine, site.events.append, lambda: None),
    ):
        pass
    assert not engine.store
