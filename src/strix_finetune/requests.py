"""Turn a planned layer into what the engine is asked: its context, labels and network, and its smoke tests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from strix_finetune import context, debian, hostgpu, names, netconf, programs, smoke, tested
from strix_finetune.afresh import afresh
from strix_finetune.ceilings import provided_version
from strix_finetune.engine.base import BuildRequest, Engine
from strix_finetune.events import Emit, SmokeResult, StepOutput
from strix_finetune.lockmodel import ArchiveLock, Lock
from strix_finetune.model import ContextFile, Keyed, Node
from strix_finetune.netconf import NetSettings
from strix_finetune.plan import Build, Step
from strix_finetune.render import ROOTFS, wheel_folder
from strix_finetune.schema import Archive
from strix_finetune.workspace import Workspace

if TYPE_CHECKING:
    from strix_finetune.vendor.offline import Vendored

# a bind mount of anything but the lent network settings
_MOUNTS_FILES = re.compile(rf"--mount=type=bind,(?!source={re.escape(netconf.FOLDER)},)")


@dataclass(frozen=True, slots=True)
class Requests:
    """Makes build requests and runs smoke tests for one stack, lock and host.

    With `vendored` nothing comes from a network: steps have none, and the driver takes what is locked from that folder.
    `lent`: what steps are told of the network where that is another host's than the one that files are fetched on.
    `twins`: a layer that another target has under the same key is taken from there.
    """

    workspace: Workspace
    lock: Lock
    settings: NetSettings
    engine: Engine
    vendored: Vendored | None = None
    lent: NetSettings | None = None
    twins: bool = False

    def build(self, step: Step, emit: Emit) -> BuildRequest:
        """What is fetched or bootstrapped for the layer is fetched now, when its turn has come; `emit` hears of it."""
        if self.twins and (twin := self._twin(step)):
            emit(StepOutput(step.name, f"the same layer as {twin}; only its labels are its own"))
            same = ContextFile("Dockerfile", f"FROM {twin}\n".encode())
            return BuildRequest(context=_opener([same]), labels=self.labels(step.layer))
        text = step.layer.layer.dockerfile
        if self.vendored:
            text = self.vendored.dockerfile(step.layer, self.engine)
        again = isinstance(step.action, Build) and step.action.afresh
        changing = []
        if again and self.engine.info.kind == "docker":
            text, file = afresh(text)
            changing, again = [file], False
        files = [ContextFile("Dockerfile", text.encode()), *changing]
        files += self.files(step.layer, emit)
        return BuildRequest(
            context=_opener(files),
            labels=self.labels(step.layer),
            build_args=dict(self.settings.proxies),
            network="none" if self.vendored else "host" if self.settings.loopback else None,
            use_cache=not again and self._cache_is_sound(step.layer),
        )

    def files(self, layer: Keyed, emit: Emit) -> Iterator[ContextFile]:
        """All that a layer is built from but its Dockerfile; what is fetched or bootstrapped is fetched now."""
        yield from self._network_files(layer)
        yield from layer.layer.files
        yield from self._fetched(layer, emit)

    def _twin(self, step: Step) -> str:
        """The name of the image that another target has under the same key: what is in it is the same."""
        if isinstance(step.action, Build) and step.action.afresh:
            return ""
        key = step.layer.key
        for image in self.engine.images(names.KEY):
            target = image.labels.get(names.TARGET, "")
            name = names.layer_ref(step.name, target, key)
            if image.labels[names.KEY] == key and target != self.workspace.stack.target.id and name in image.tags:
                return name
        return ""

    def _cache_is_sound(self, layer: Keyed) -> bool:
        """Whether the engine's own cache can be trusted with a layer.

        buildah takes a step for the same when its text is, and looks at no file that is mounted for it: a changed
        patch would not be applied. What stands for the network is in no key, and does not count here either.
        """
        return self.engine.info.kind == "docker" or not _MOUNTS_FILES.search(layer.layer.dockerfile)

    def labels(self, layer: Keyed) -> dict[str, str]:
        """Stable labels only: no date, no revision. A volatile one would rebuild every child."""
        stack = self.workspace.stack
        labels = {
            names.KEY: layer.key,
            names.LAYER: layer.name,
            names.TARGET: stack.target.id,
            names.CHANNEL: stack.channel.name,
            names.PARTS: json.dumps(dict(layer.parts), sort_keys=True, separators=(",", ":")),
            names.TESTS: tested.label(tested.digests(stack, layer.name)),
        }
        if stack.channel.spec.notice:
            labels[names.NOTICE] = stack.channel.spec.notice
        return labels | version_labels(layer.layer.node, self.lock)

    def smoke(self, step: Step, image: str, emit: Emit) -> tuple[SmokeResult, ...]:
        tests = smoke.tests_for(self.workspace.stack, step.name)
        if not tests:
            return ()
        target = self.workspace.stack.target
        chosen = hostgpu.choose(hostgpu.gpus(), target.id)
        devices = hostgpu.devices(chosen=chosen) if target.spec.kind == "gpu" else ()
        return smoke.run_tests(
            self.engine,
            image,
            step.name,
            tests,
            self._facts(),
            {
                "STRIX_LAYER": step.name,
                "STRIX_TARGET": self.workspace.stack.target.id,
                "STRIX_CHANNEL": self.workspace.stack.channel.name,
            },
            emit,
            devices,
            hostgpu.groups(devices),
        )

    def _facts(self) -> dict[str, bytes]:
        """What was declared and locked, for tests that compare it with what is installed, and what they read it with.

        `locked/`: the lock; in `wheels.json` of which index and time each set of wheels is. `patches/<layer>/`: the
        patches. `layers.json`, `targets.json`: what the definitions say.
        `lib/codeobject/`, `lib/guard/`: the reader of device code and the guards, as Python packages.
        """
        stack = self.workspace.stack
        apt = "".join(f"{name}={package.version}\n" for name, package in self.lock.apt.packages.items())
        sets = {f"locked/pip-{name}.txt": entry.text.encode() for name, entry in self.lock.pip.items()}
        sets |= {f"locked/wheels-{name}.txt": held.text.encode() for name, held in self.lock.wheels.items()}
        patches = {
            f"patches/{node.name}/{patch.name}": patch.read_bytes() for node in stack.nodes for patch in node.patches
        }
        layers = {
            node.name: {
                "vars": dict(node.vars),
                "archives": {name: archive.model_dump() for name, archive in node.archives.items()},
                "patches": [patch.name for patch in node.patches],
                "sets": [*(f"pip-{name}" for name in node.pip), *(f"wheels-{name}" for name in node.wheels)],
            }
            for node in stack.nodes
        }
        targets = {
            target.id: target.spec.model_dump(include={"kind", "wave_size", "missing", "excluded"})
            for target in self.workspace.project.targets.values()
        }
        reader = {
            f"lib/{package}/{path.name}": path.read_bytes()
            for package in ("codeobject", "guard")
            for path in sorted(Path(__file__).with_name(package).glob("*.py"))
        }
        indexes = stack.channel.spec.indexes
        wheels = {
            name: {
                "index": indexes[held.index].url if held.index in indexes else held.index,
                "time": held.time,
                "python": held.python,
                "files": [wheel.file for wheel in held.wheels],
            }
            for name, held in self.lock.wheels.items()
        }
        declared = {"layers.json": layers, "targets.json": targets, "locked/wheels.json": wheels}
        written = {name: json.dumps(value, indent=1).encode() for name, value in declared.items()}
        return {"locked/apt.txt": apt.encode(), **sets, **patches, **written, **reader}

    def _archive(self, entry: Archive, cache: Path) -> Path:
        from strix_finetune import archives

        if self.vendored:
            return self.vendored.archive(ArchiveLock(entry.url, entry.sha256, entry.size))
        apt = self.workspace.stack.channel.spec.apt
        return archives.get(entry.url, entry.sha256, entry.size, cache, self.settings, apt)

    def _wheels(self, name: str, folder: Path, tell: Callable[[str], None]) -> Iterator[ContextFile]:
        from strix_finetune import wheelfiles

        held = self.lock.wheels[name]
        if self.vendored:
            for wheel, path in zip(held.wheels, self.vendored.wheels(held), strict=True):
                yield ContextFile(f"{wheel_folder(name)}/{wheel.file}", path)
            return
        index = self.workspace.stack.channel.spec.indexes[held.index]
        for wheel, path in wheelfiles.fetch_set(held, index, folder, self.settings, tell):
            yield ContextFile(f"{wheel_folder(name)}/{wheel.file}", path)

    def _network_files(self, layer: Keyed) -> Iterator[ContextFile]:
        for file in self._lent(layer):
            yield ContextFile(f"{netconf.FOLDER}/{file.path}", file.source, file.executable)

    def _lent(self, layer: Keyed) -> Iterator[netconf.NetFile]:
        if self.vendored:
            return self.vendored.lent(layer)
        pip_sets = layer.layer.node.pip
        wanted = {pair: hashes for name in pip_sets for pair, hashes in self.lock.pip[name].files.items()}
        suites = debian.suites(self.workspace.stack.channel.spec.apt)
        settings = self.lent or self.settings
        if len(suites.suites) > 1:
            # the image's own sources have the main suite alone
            settings = replace(settings, debian_mirror=programs.of(settings).mirror(settings.debian_mirror))
        return netconf.files(settings, wanted, suites=suites, uv=bool(pip_sets or layer.layer.node.wheels))

    def _fetched(self, layer: Keyed, emit: Emit) -> Iterator[ContextFile]:
        from strix_finetune import bootstrap

        cache = self.workspace.folders.cache
        for name, entry in layer.layer.node.archives.items():
            if f"archive {name}" in layer.layer.inputs:
                path = self._archive(entry, cache)
                yield ContextFile(f"inputs/archives/{entry.url.rsplit('/', 1)[-1]}", path)
        here = {file.path for file in layer.layer.files}
        for name in layer.layer.node.wheels:
            if f"{wheel_folder(name)}/requirements.txt" in here:
                yield from self._wheels(name, cache / "archives", lambda text: emit(StepOutput(layer.name, text)))
        if ROOTFS in layer.layer.dockerfile:
            channel = self.workspace.stack.channel.spec

            def say(line: str) -> None:
                emit(StepOutput(layer.name, line))

            with self.vendored.mirror(layer, cache) if self.vendored else nullcontext(self.settings) as settings:
                settings = replace(settings, programs=self.settings.programs)
                path = bootstrap.rootfs(layer, self.lock, channel, settings, cache, say)
            yield ContextFile(ROOTFS, path)


def version_labels(node: Node, lock: Lock) -> dict[str, str]:
    """Label → version of each thing that the layer provides."""
    versions = {name: provided_version(node, name, lock) for name in node.layer.spec.provides}
    return {f"{names.LABEL}.version.{name}": version for name, version in versions.items() if version}


def _opener(files: list[ContextFile]) -> Callable[[], Iterator[bytes]]:
    return lambda: context.tar(files)


def log_folder(workspace: Workspace) -> Path:
    stack = workspace.stack
    return workspace.folders.state / "logs" / f"{stack.channel.name}-{stack.target.id}"
