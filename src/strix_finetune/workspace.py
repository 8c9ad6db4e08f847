"""What every command begins with: the definitions, narrowed to one target and channel, and their lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from strix_finetune import graph, hostgpu, lockfile, mirrors
from strix_finetune.errors import LockError
from strix_finetune.load import load
from strix_finetune.lockmodel import Lock, WheelSetLock
from strix_finetune.model import Keyed, Project, Stack
from strix_finetune.netconf import Flags
from strix_finetune.paths import Folders, find
from strix_finetune.render import Locked, render_stack


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says of which images are meant. Empty means: choose."""

    target: str = ""
    channel: str = ""
    engine: str = "auto"
    override: Path | None = None
    images: Path | None = None
    network: Flags = field(default_factory=Flags)


@dataclass(frozen=True, slots=True)
class Workspace:
    folders: Folders
    project: Project
    stack: Stack

    @property
    def lock_folders(self) -> tuple[Path, ...]:
        """Where locks are looked for, the first that has one wins; the first is also where a new one is written.

        A user's override has locks of its own when its lists differ; an installed package cannot be written to.
        """
        shipped = self.folders.images / "locks"
        if self.project.override and self._asks_for_more:
            return (self.project.override / "locks", self.folders.data / "locks", shipped)
        return (shipped,) if self.folders.in_checkout else (self.folders.data / "locks", shipped)

    @property
    def _asks_for_more(self) -> bool:
        """Whether the override changes what is locked: package lists, requirements or layers, not only variables."""
        override = self.project.override
        return override is not None and any(
            layer.folder.is_relative_to(override)
            or (layer.edit is not None and bool(layer.edit.spec.packages or layer.edit.spec.requirements))
            for layer in self.project.layers.values()
        )

    @property
    def lock_path(self) -> Path | None:
        """The lock that is in force, or None when there is none yet."""
        name = lockfile.file_name(self.stack.channel.name, self.stack.target.id)
        return next((folder / name for folder in self.lock_folders if (folder / name).is_file()), None)

    def read_lock(self) -> Lock | None:
        path = self.lock_path
        return lockfile.read(path) if path else None

    def need_lock(self) -> Lock:
        """The lock that is in force. Raises LockError where there is none."""
        lock = self.read_lock()
        if lock is None:
            what = f"{self.stack.channel.name} for {self.stack.target.id}"
            raise LockError(f"there is no lock of {what}", cure="run 'strix-finetune lock'")
        return lock

    def save_lock(self, lock: Lock) -> None:
        lockfile.save(lock, self.lock_folders[0])

    def render(self, lock: Lock) -> tuple[Keyed, ...]:
        return render_stack(self.project, self.stack, locked(lock), self.folders)


def open_workspace(options: Options, env: Mapping[str, str]) -> Workspace:
    """Load everything and choose: the target is the largest GPU found, else the default; it decides on the channel."""
    folders = find(env)
    if options.images:
        folders = replace(folders, images=options.images)
    project = load(folders.images, options.override)
    gpus = [name for name in hostgpu.found() if name in project.targets and not project.targets[name].spec.excluded]
    target = options.target or (gpus[0] if gpus else project.default_target)
    channel = options.channel or ("amd" if gpus and "amd" in project.channels else "debian")
    stack = graph.stack(project, target, channel)
    mirrors.check_names(options.network.indexes, list(stack.channel.spec.indexes), channel)
    return Workspace(folders, project, stack)


def locked(lock: Lock) -> Locked:
    """The lock as the renderer asks for it; what is missing is a LockError."""

    def lacking(what: str) -> LockError:
        return LockError(
            f"the lock of {lock.channel} for {lock.target} has no {what}", cure="run 'strix-finetune lock'"
        )

    def apt(packages: tuple[str, ...]) -> Mapping[str, str]:
        absent = [f"'{name}'" for name in packages if name not in lock.apt.packages]
        if absent:
            raise lacking(f"Debian package{'s' * (len(absent) > 1)} {', '.join(absent)}")
        return {name: lock.apt.packages[name].version for name in packages}

    def pip(name: str) -> bytes:
        if name not in lock.pip:
            raise lacking(f"requirement set '{name}'")
        return lock.pip[name].text.encode()

    def wheels(name: str) -> WheelSetLock:
        if name not in lock.wheels:
            raise lacking(f"set of wheels '{name}'")
        return lock.wheels[name]

    def image(name: str) -> str:
        if name not in lock.images:
            raise lacking(f"digest of the image '{name}'")
        return f"{name.rsplit(':', 1)[0]}@{lock.images[name]}"

    return Locked(apt, pip, image, wheels)
