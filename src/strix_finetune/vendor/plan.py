"""What a lock needs, file by file: asks the archive and the index, and fetches nothing but their signed lists."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strix_finetune import bootstrap, leftovers, lockfile, programs
from strix_finetune import lock as locks
from strix_finetune.errors import LockError
from strix_finetune.lockmodel import Lock
from strix_finetune.model import Keyed
from strix_finetune.netconf import NetSettings, redact
from strix_finetune.registry import repository
from strix_finetune.registry.parts import Parts
from strix_finetune.resolve import image
from strix_finetune.resolve.apt import AptArchive
from strix_finetune.vendor import aptmirror, archives, images, steps, wheels
from strix_finetune.vendor.manifest import Entry, LockEntry
from strix_finetune.vendor.solve import Deb, Installed, Solver, read_root
from strix_finetune.workspace import Workspace

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Needed:
    """What one lock needs. `files` are to be fetched; `made` (path → content) are written at once."""

    entry: LockEntry
    files: tuple[Entry, ...]
    made: Mapping[str, bytes]


def read_lock(workspace: Workspace) -> Lock:
    """The lock, when it has all that the layers ask for. Raises LockError otherwise: nothing is locked on the way."""
    lock = workspace.need_lock()
    if gaps := locks.missing(workspace.stack, lock):
        lacking = ", ".join(str(gap) for gap in gaps[:3])
        what = f"{workspace.stack.channel.name} for {workspace.stack.target.id}"
        raise LockError(f"the lock of {what} lacks {lacking}", cure="run 'strix-finetune lock'")
    locks.check_versions(workspace.stack, lock)
    return lock


def lock_digest(lock: Lock) -> str:
    """sha256 of a lock's files: what a folder was vendored for."""
    whole = hashlib.sha256()
    for name, content in sorted(lockfile.files(lock).items()):
        whole.update(f"{name} {hashlib.sha256(content).hexdigest()}\n".encode())
    return whole.hexdigest()


def make(workspace: Workspace, lock: Lock, layers: Sequence[Keyed], settings: NetSettings, say: Say) -> Needed:
    """Ask for everything.

    Raises LockError for what is locked and no longer served, FetchFailed or RegistryError for no answer.
    """
    apt = workspace.stack.channel.spec.apt
    asked = steps.read_steps(workspace.stack, layers)
    cache = workspace.folders.cache
    mirror = redact(programs.of(settings).mirror(settings.debian_mirror))
    with AptArchive(settings, cache).state(apt) as state, _work(cache) as work:
        say("asking Debian's archive what the layers install")
        state.update()
        suites = aptmirror.read_suites(state, apt)
        root = _Root(workspace, lock, layers, settings, say)
        installed, program = root.read(asked, work)
        solver = Solver(state, program, work)
        if any(entry.rootfs for entry in asked) and len(solver.served(installed.versions)) < len(installed.versions):
            say("the archive has moved on since the root file system was made: making it anew")
            installed, program = root.read(asked, work, anew=True)
            solver = Solver(state, program, work)
        debs, glibc = _solve(asked, installed, solver)
    folder = aptmirror.folder_name(suites)
    unique = {deb.path: deb for listed in debs.values() for deb in listed}
    say("asking the package index for the files of the locked versions")
    files = [
        *aptmirror.entries(mirror, folder, suites, list(unique.values())),
        *wheels.python_entries(lock, glibc, settings),
        *wheels.channel_entries(lock, workspace.stack.channel.spec.indexes, settings),
        *archives.entries(lock),
        *(entry for name, found in root.images.items() for entry in images.entries(name, found)),
    ]
    made = {
        f"{folder}/dists/{suite.name}/{name}": content for suite in suites for name, content in suite.signed.items()
    }
    for name, found in root.images.items():
        made |= images.layout(name, found)
    paths = tuple(sorted({entry.path for entry in files} | made.keys()))
    by_layer = {layer: tuple(f"{folder}/{deb.path}" for deb in listed) for layer, listed in debs.items()}
    digest = steps.digest(workspace.stack, asked)
    return Needed(LockEntry(lock_digest(lock), digest, folder, by_layer, paths), tuple(files), made)


def _solve(
    asked: Sequence[steps.LayerSteps], installed: Installed, solver: Solver
) -> tuple[dict[str, tuple[Deb, ...]], str]:
    """Layer → the .deb files that its build installs; and the version of the root's C library."""
    libc = next((version for name, version, _ in installed.versions if name == "libc6"), "")
    debs: dict[str, tuple[Deb, ...]] = {}
    known: dict[str, Installed] = {steps.EMPTY: Installed()}
    for layer in asked:
        found: dict[str, Deb] = {}
        for stage in layer.stages:
            state = known.get(stage.base, installed)
            if stage.base == steps.ROOT:
                found |= {deb.path: deb for deb in solver.debs(installed.versions)}
            for install in stage.installs:
                state, more = solver.install(state, install)
                found |= {deb.path: deb for deb in more}
            known[f"stage:{stage.name}"] = known[f"layer:{layer.layer}"] = state
        known = {name: held for name, held in known.items() if not name.startswith("stage:")}
        debs[layer.layer] = tuple(found.values())
    return {layer: listed for layer, listed in debs.items() if listed}, libc


@dataclass(frozen=True, slots=True)
class _Root:
    """What the stack begins with: a root file system that mmdebstrap makes, or a registry image.

    `images`: name → what the locked image consists of.
    """

    workspace: Workspace
    lock: Lock
    layers: Sequence[Keyed]
    settings: NetSettings
    say: Say
    images: dict[str, Parts] = field(default_factory=dict)

    def read(
        self, asked: Sequence[steps.LayerSteps], work: Path, *, anew: bool = False
    ) -> tuple[Installed, tuple[str, ...]]:
        """What is installed there, and the apt-get that decides: its own, or this host's for a registry image, of
        which no program is run here."""
        channel, cache = self.workspace.stack.channel.spec, self.workspace.folders.cache
        name = next((entry.layer for entry in asked if entry.rootfs), None)
        if name is None:
            self.say(f"fetching the image {channel.bootstrap.image}")
            return images.read_installed(self._layers(channel.bootstrap.image, cache / "archives")), ("apt-get",)
        layer = next(entry for entry in self.layers if entry.name == name)
        tar = bootstrap.rootfs(layer, self.lock, channel, self.settings, cache, anew=anew)
        return read_root(tar, work / ("anew" if anew else "root"))

    def _layers(self, name: str, folder: Path) -> list[Path]:
        """The layers of an image, in the cache from now on."""
        registry = image.at(repository.of_image(name)[0], self.settings, self.say)
        found = self.images[name] = image.contents(name, self.lock.images[name], registry)
        paths = []
        for layer in found.layers:
            paths.append(folder / layer.digest.removeprefix("sha256:"))
            registry.download(layer, paths[-1], lambda done: None)
        return paths


@contextlib.contextmanager
def _work(cache: Path) -> Iterator[Path]:
    folder = cache / "vendor"
    folder.mkdir(parents=True, exist_ok=True)
    leftovers.remove_leftovers(folder)
    with leftovers.temporary(folder, "solve", "work") as work:
        work.mkdir()
        yield work
