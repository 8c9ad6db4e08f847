"""What is other in one image than in another: packages, files, settings, sizes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from strix_finetune.oci.normal import MOUNT_POINTS, is_noise
from strix_finetune.oci.owners import label, owners, packages
from strix_finetune.oci.tree import Entry, Kind
from strix_finetune.oci.whole import Whole

What = Literal["added", "removed", "changed"]
# what a container is started with
_SETTINGS = ("User", "Env", "Entrypoint", "Cmd", "WorkingDir", "ExposedPorts", "Volumes", "StopSignal")
_BUILDER = ("io.buildah.", "io.podman.")


@dataclass(frozen=True, slots=True)
class FileChange:
    """`how`: what of a changed file is other ("content", "mode", "owner", …). Sizes in bytes, None where it is not."""

    path: str
    what: What
    how: tuple[str, ...]
    before: int | None
    after: int | None
    package: str


@dataclass(frozen=True, slots=True)
class PackageChange:
    """A package by kind and name; versions, None where it is not; bytes that its files take."""

    kind: str
    name: str
    what: What
    before: str | None
    after: str | None
    size_before: int
    size_after: int


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable, a label, or another part of the configuration."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """`size_…`: bytes of all files. `times`: files that differ in their time alone. `noise`: logs, caches, and marks of
    the engine that differ. `layers`: how many of the second image's layers the first has, too, of how many.
    """

    before: str
    after: str
    packages: tuple[PackageChange, ...]
    files: tuple[FileChange, ...]
    settings: tuple[Setting, ...]
    size_before: int
    size_after: int
    times: int
    noise: int
    layers_shared: int
    layers: int

    @property
    def same(self) -> bool:
        """Whether a program in the image could not tell them apart; both are then pushed as the same layers."""
        return not self.files and not self.settings

    def as_json(self) -> dict[str, Any]:
        return {"same": self.same, **asdict(self)}


def compare(before: Whole, after: Whole) -> Difference:
    """Everything that differs, largest packages first, files by path."""
    owned = (owners(before), owners(after))
    changes: list[FileChange] = []
    times = noise = 0
    for path in sorted(before.tree.keys() | after.tree.keys()):
        old, new = before.tree.get(path), after.tree.get(path)
        if old and new and old.meaning == new.meaning:
            times += old.mtime != new.mtime and old.kind is not Kind.FOLDER
        elif all(is_noise(entry) for entry in (old, new) if entry) or (path in MOUNT_POINTS and not (old and new)):
            noise += 1
        else:
            package = label(path, owned[1 if new else 0])
            changes.append(_changed(path, old, new, package))
    sizes = tuple(_package_sizes(whole, found) for whole, found in zip((before, after), owned, strict=True))
    held = set(before.layers)
    return Difference(
        before.name,
        after.name,
        _packages(packages(before), packages(after), sizes[0], sizes[1]),
        tuple(changes),
        _settings(before.config, after.config),
        _size(before),
        _size(after),
        times,
        noise,
        sum(layer in held for layer in after.layers),
        len(after.layers),
    )


def _changed(path: str, old: Entry | None, new: Entry | None, package: str) -> FileChange:
    what: What = "changed" if old and new else "added" if new else "removed"
    how = []
    if old and new:
        pairs = {
            "kind": (old.kind, new.kind),
            "content": ((old.size, old.sha256), (new.size, new.sha256)),
            "mode": (old.mode, new.mode),
            "owner": ((old.uid, old.gid), (new.uid, new.gid)),
            "target": (old.target, new.target),
            "attributes": (old.xattrs, new.xattrs),
        }
        how = [name for name, (one, other) in pairs.items() if one != other]
    return FileChange(path, what, tuple(how), old.size if old else None, new.size if new else None, package)


def _size(whole: Whole) -> int:
    return sum(entry.size for entry in whole.tree.values())


def _package_sizes(whole: Whole, found: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    sizes: dict[tuple[str, str], int] = {}
    for path, package in found.items():
        if entry := whole.tree.get(path):
            key = (package.kind, package.name)
            sizes[key] = sizes.get(key, 0) + entry.size
    return sizes


def _packages(
    before: Mapping[tuple[str, str], str],
    after: Mapping[tuple[str, str], str],
    sizes_before: Mapping[tuple[str, str], int],
    sizes_after: Mapping[tuple[str, str], int],
) -> tuple[PackageChange, ...]:
    found = []
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        what: What = "added" if old is None else "removed" if new is None else "changed"
        sizes = (sizes_before.get(key, 0) if old else 0, sizes_after.get(key, 0) if new else 0)
        found.append(PackageChange(*key, what, old, new, *sizes))
    return tuple(sorted(found, key=lambda row: (-abs(row.size_after - row.size_before), row.kind, row.name)))


def _settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Setting, ...]:
    old, new = _flat(before), _flat(after)
    names = sorted(old.keys() | new.keys())
    return tuple(Setting(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name))


def _flat(config: Mapping[str, Any]) -> dict[str, str]:
    """The settings as name → text: "env PATH", "label …", "cmd"."""
    said: Mapping[str, Any] = config.get("config") or {}
    found: dict[str, str] = {}
    for name in _SETTINGS:
        value = said.get(name)
        if name == "Env":
            pairs = (entry.partition("=") for entry in value or ())
            found |= {f"env {variable}": text for variable, _, text in pairs}
        elif value and not (name == "WorkingDir" and value == "/"):
            found[name.lower()] = " ".join(value) if isinstance(value, list) else str(value)
    labels: Mapping[str, str] = said.get("Labels") or {}
    return found | {f"label {name}": text for name, text in labels.items() if not name.startswith(_BUILDER)}
