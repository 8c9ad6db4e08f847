"""Make the lock of one target from that of another: the same versions, and only what differs between the targets.

Images of several GPUs then hold the same software, and what was tried on one of them counts for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from strix_finetune import lockfile
from strix_finetune.errors import InputError, LockError, Place, Problem, nearest
from strix_finetune.lockmodel import Lock
from strix_finetune.workspace import Workspace


def read(word: str, workspace: Workspace) -> tuple[Lock, Path]:
    """The lock that `word` means, a file or a target, and where it lies. Raises InputError or LockError."""
    channel, targets = workspace.stack.channel.name, workspace.project.targets
    if word in targets:
        name = lockfile.file_name(channel, word)
        path = next((folder / name for folder in workspace.lock_folders if (folder / name).is_file()), None)
        if path is None:
            raise LockError(f"there is no lock of {channel} for {word}", cure="name a target that has one, or a file")
    elif "/" in word or word.endswith(".toml"):
        path = Path(word)
    else:
        raise InputError(f"'{word}' is neither a target nor a file", cure=nearest(word, list(targets)))
    other = lockfile.read(path)
    if other.channel != channel:
        raise InputError(
            Problem(f"this is a lock of the channel {other.channel}", Place(path), f"choose one of {channel}")
        )
    return other, path


def as_previous(other: Lock, workspace: Workspace) -> Lock:
    """The other target's lock as what the new one is made from; what was accepted there was not accepted here."""
    return replace(other, target=workspace.stack.target.id, accepted={})


def check(other: Lock, made: Lock) -> None:
    """Raise LockError where the new lock has not the same files as the other one, but for those of its own target."""
    if problems := tuple(_differences(other, made)):
        raise LockError(problems)


def _differences(other: Lock, made: Lock) -> Iterator[Problem]:
    cure = f"lock {other.target} anew, or lock {made.target} without --from-lock"
    for name, held in made.wheels.items():
        before = {wheel.name: wheel for wheel in other.wheels[name].wheels} if name in other.wheels else {}
        for wheel in held.wheels:
            old = before.get(wheel.name)
            if old is None or (old.version, old.sha256) == (wheel.version, wheel.sha256):
                continue
            became = wheel.version if wheel.version != old.version else "another file of the same version"
            message = f"{old.name} {old.version} of {other.target} would become {became} for {made.target}"
            yield Problem(message, None, cure)
