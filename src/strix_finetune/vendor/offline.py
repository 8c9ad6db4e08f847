"""A build without a network: what its steps ask for comes from a vendored folder, checked, or the build stops."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from strix_finetune import debian, netconf
from strix_finetune.engine.base import Engine
from strix_finetune.errors import InputError, LockError, Place, Problem
from strix_finetune.indexes import Indexes
from strix_finetune.lockmodel import ArchiveLock, Lock, WheelSetLock
from strix_finetune.model import Keyed, Stack
from strix_finetune.netconf import NetFile, NetSettings
from strix_finetune.vendor import archives, check, images, manifest, plan, steps, wheels
from strix_finetune.vendor.manifest import Entry, LockEntry, Manifest

# where a step finds its part of the archive
_MIRROR = f"{netconf.MOUNT}/apt"


@dataclass(frozen=True, slots=True)
class Vendored:
    """One folder, opened for one lock. `asking`: the layers with a build step that installs .deb files."""

    folder: Path
    listed: Manifest
    held: LockEntry
    stack: Stack
    lock: Lock
    asking: frozenset[str]

    def settings(self) -> NetSettings:
        """The host's settings for steps: its network has no part in them."""
        # what has no network needs no unprivileged user to fetch for it
        return NetSettings(
            debian_mirror=f"file:{_MIRROR}",
            apt_options=(("APT::Sandbox::User", "root"),),
            indexes=Indexes(no_index=True),
        )

    def lent(self, layer: Keyed) -> Iterator[NetFile]:
        """The folder that is lent to the layer's steps: its part of the archive, and its wheels."""
        node = layer.layer.node
        asks = layer.name in self.asking
        settings = self.settings() if asks else replace(self.settings(), debian_mirror="")
        suites = debian.suites(self.stack.channel.spec.apt)
        chosen = self._checked(self._python_files(layer))
        yield from netconf.files(settings, suites=suites, uv=bool(node.pip or node.wheels), chosen=chosen)
        if asks:
            for entry in self._apt_files(layer):
                yield NetFile(f"apt/{entry.in_archive}", self._checked([entry])[0])

    def archive(self, archive: ArchiveLock) -> Path:
        return self._checked([self._archive(archive)])[0]

    def wheels(self, held: WheelSetLock) -> list[Path]:
        """The files of a set of wheels."""
        return self._checked(self._wheel_files(held))

    @contextlib.contextmanager
    def mirror(self, layer: Keyed, cache: Path) -> Iterator[NetSettings]:
        """Settings with a mirror of what the root file system of `layer` is made of, for any user to read."""
        cache.mkdir(parents=True, exist_ok=True)
        with debian.work_folder(cache) as work:
            root = work / "mirror"
            for entry in self._apt_files(layer):
                target = root / entry.in_archive
                target.parent.mkdir(parents=True, exist_ok=True)
                # no link: the copy's rights are not those of the folder's owner
                shutil.copyfile(self._checked([entry])[0], target)
                target.chmod(0o644)
            for path in (root, *root.rglob("*/")):
                path.chmod(0o755)
            yield replace(self.settings(), debian_mirror=f"copy://{root}")

    def dockerfile(self, layer: Keyed, engine: Engine) -> str:
        """The layer's Dockerfile as the engine gets it: a registry image in it is one that was loaded from here."""
        text = layer.layer.dockerfile
        for name, digest in self.lock.images.items():
            pinned, local = f"{name.rsplit(':', 1)[0]}@{digest}", images.local_name(digest)
            if pinned not in text:
                continue
            if engine.image(local) is None:
                self._checked(self._image_files(name))
                engine.load(partial(images.archive, name, digest, self.folder))
            text = text.replace(pinned, local)
        return text

    def faults(self, layers: Sequence[Keyed]) -> list[Problem]:
        """What these layers need and the folder lacks, told by names and sizes alone."""
        wanted: dict[str, Entry] = {}
        for layer in layers:
            node = layer.layer.node
            needed = [*self._apt_files(layer), *self._python_files(layer)]
            needed += [entry for name in node.wheels for entry in self._wheel_files(self.lock.wheels[name])]
            needed += [self._archive(self.lock.archives[name]) for name in node.archives]
            needed += [
                entry
                for name, digest in self.lock.images.items()
                if digest in layer.layer.dockerfile
                for entry in self._image_files(name)
            ]
            wanted |= {entry.path: entry for entry in needed}
        found = [check.fault(self.folder, entry, read=False) for entry in wanted.values()]
        return [problem for problem in found if problem]

    def _apt_files(self, layer: Keyed) -> list[Entry]:
        """The archive's signed lists, and the .deb files that the layer installs; nothing where it asks no apt."""
        debs = self.held.debs.get(layer.name, ())
        if not debs and layer.name not in self.asking:
            return []
        begin = f"{self.held.mirror}/dists/"
        return [
            self.listed.files[path] for path in (*(path for path in self.held.files if path.startswith(begin)), *debs)
        ]

    def _python_files(self, layer: Keyed) -> list[Entry]:
        """Of each version in the layer's requirement sets the file that was vendored."""
        begin = f"{wheels.ROOT}/{wheels.PYTHON}/"
        entries = [self.listed.files[path] for path in self.held.files if path.startswith(begin)]
        here = {entry.sha256: entry for entry in entries}
        found = []
        for held in (self.lock.pip[name] for name in layer.layer.node.pip):
            for (name, version), hashes in held.files.items():
                matching = sorted(hashes & here.keys())
                if not matching:
                    raise self._lacks(f"{begin}{name}", f"{name} {version}")
                found.append(here[matching[0]])
        return found

    def _wheel_files(self, held: WheelSetLock) -> list[Entry]:
        index = self.stack.channel.spec.indexes[held.index]
        return [self._entry(wheels.wheel_path(wheel, held.index, index), wheel.sha256) for wheel in held.wheels]

    def _archive(self, archive: ArchiveLock) -> Entry:
        return self._entry(archives.path(archive), archive.sha256)

    def _image_files(self, name: str) -> list[Entry]:
        begin = f"{images.folder(name)}/"
        return [self.listed.files[path] for path in self.held.files if path.startswith(begin)]

    def _entry(self, path: str, sha256: str) -> Entry:
        """The entry of a file that the lock names: what the lock says decides, not what the manifest lists."""
        entry = self.listed.files.get(path)
        if entry is None:
            raise self._lacks(path, path.rsplit("/", 1)[-1])
        return replace(entry, sha256=sha256)

    def _lacks(self, path: str, what: str) -> InputError:
        cure = f"run 'strix-finetune vendor {self.folder}' on a machine with a network"
        return InputError(Problem(f"the vendored folder lacks {what}", Place(self.folder / path), cure))

    def _checked(self, entries: Sequence[Entry]) -> list[Path]:
        problems = [problem for entry in entries if (problem := check.fault(self.folder, entry))]
        if problems:
            raise InputError(problems)
        return [self.folder / entry.path for entry in entries]


def open_folder(folder: Path, stack: Stack, lock: Lock, layers: Sequence[Keyed]) -> Vendored:
    """Open a folder for a lock. Raises InputError where it is no such folder, LockError where it is another lock's."""
    listed = manifest.read(folder)
    name = f"{lock.channel}-{lock.target}"
    cure = f"run 'strix-finetune vendor {folder}' on a machine with a network"
    if name not in listed.locks:
        known = ", ".join(sorted(listed.locks)) or "nothing"
        raise LockError(f"{folder} holds the inputs of {known}, and not of {name}", cure=cure)
    held = listed.locks[name]
    if held.lock != plan.lock_digest(lock):
        raise LockError(f"{folder} was vendored for another lock of {name} than the one in force", cure=cure)
    asked = steps.read_steps(stack, layers)
    if held.asks != steps.digest(stack, asked):
        raise LockError(f"the layers ask apt for other packages than {folder} was vendored for", cure=cure)
    if not held.complete:
        raise InputError(f"{folder} does not hold all that {name} needs: vendoring was interrupted", cure=cure)
    asking = frozenset(entry.layer for entry in asked if any(stage.installs for stage in entry.stages))
    return Vendored(folder, listed, held, stack, lock, asking)
