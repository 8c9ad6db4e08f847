"""Checkpoints: written aside, sealed by a manifest, then renamed; what may be resumed from, and what may go.

A folder `checkpoint-STEP` under its final name is whole. Its manifest lists every file with size and sha256, so that a
file that was cut off, changed or removed later is found before training goes on from a wrong state.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from strix_train.errors import InputError, Problem, TrainError

MANIFEST = "complete.json"
ASIDE = ".partial"
# Without one file of each kind a checkpoint would train on, silently, from a wrong state. DeepSpeed keeps optimizer
# and scheduler together in a folder of its own.
_NEEDED = {
    "the trainer's state": ("trainer_state.json",),
    "the optimizer": ("optimizer", "global_step"),
    "the scheduler": ("scheduler.pt", "global_step"),
    "the random numbers' state": ("rng_state",),
}


def step_of(checkpoint: Path) -> int:
    """Return the optimizer step of a checkpoint folder, -1 where its name holds none."""
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1


def seal(checkpoint: Path, **facts: Any) -> None:
    """Write the manifest of a finished checkpoint. Everything is on the disk before it; `facts` go into it.

    Raises TrainError where the checkpoint lacks a part without which nothing could go on from it.
    """
    files = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                os.fsync(stream.fileno())
            files[str(path.relative_to(checkpoint))] = {"size": path.stat().st_size, "sha256": digest}
    lacks = _lacks(files)
    if lacks:
        raise TrainError(f"{checkpoint.name} was written without {lacks}, so nothing could go on from it")
    aside = checkpoint / f".{MANIFEST}.partial"
    with aside.open("w", encoding="utf-8") as stream:
        json.dump({"step": step_of(checkpoint), **facts, "files": files}, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(checkpoint / MANIFEST)
    _sync(checkpoint)


def manifest(checkpoint: Path) -> dict[str, Any]:
    """Return the manifest's value; empty where there is none or it is broken."""
    try:
        value = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def fault(checkpoint: Path, *, deep: bool = False) -> str:
    """Return what is wrong with a checkpoint, empty when it is whole. `deep` reads its files and compares digests."""
    files = manifest(checkpoint).get("files")
    if not isinstance(files, dict) or not all(isinstance(entry, dict) for entry in files.values()):
        return f"it has no {MANIFEST}" if files is None else f"its {MANIFEST} is broken"
    lacks = _lacks(files)
    if lacks:
        return f"it was made without {lacks}"
    for name, entry in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        size = path.stat().st_size
        if size != entry.get("size"):
            return f"{name} has {size} bytes instead of {entry.get('size')}"
        if deep:
            with path.open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != entry.get("sha256"):
                    return f"{name} is not the file that was written"
    return ""


def _lacks(files: Iterable[str]) -> str:
    names = list(files)
    return next((what for what, starts in _NEEDED.items() if not any(name.startswith(starts) for name in names)), "")


def folders(parent: Path) -> list[Path]:
    """Return the checkpoint folders, whole or not, oldest first."""
    return sorted((path for path in parent.glob("checkpoint-*") if path.is_dir()), key=step_of)


def whole(parent: Path) -> list[Path]:
    """Return the checkpoints whose files have their sizes, oldest first."""
    return [path for path in folders(parent) if not fault(path)]


def newest(parent: Path, tell: Callable[[str], None]) -> Path | None:
    """Return the newest checkpoint that can be resumed from; None where none was ever finished.

    What was never sealed is removed. A sealed one that is damaged is passed over, and `tell` says why. Raises
    InputError where every sealed one is damaged: to begin again from nothing must be the user's decision.
    """
    clear(parent)
    for path in folders(parent):
        if not (path / MANIFEST).exists():
            shutil.rmtree(path, ignore_errors=True)
    damaged = []
    for path in reversed(folders(parent)):
        wrong = fault(path, deep=True)
        if not wrong:
            return path
        damaged.append(f"{path.name}: {wrong}")
        tell(f"{path.name} is not used: {wrong}")
    if damaged:
        raise InputError(
            Problem(
                f"no checkpoint in {parent} can be resumed from ({', '.join(damaged)})",
                cure="put the file back, or begin another run without --resume",
            )
        )
    return None


def clear(parent: Path) -> None:
    """Remove what a killed process was writing."""
    for path in parent.glob(f"{ASIDE}*"):
        shutil.rmtree(path, ignore_errors=True)


def aside(parent: Path) -> Path:
    """Return the folder that a checkpoint is written into, as checkpoint-STEP, before it is sealed."""
    return parent / ASIDE


def publish(parent: Path, step: int, **facts: Any) -> Path:
    """Seal the checkpoint that lies aside and give it its final name."""
    written, final = aside(parent) / f"checkpoint-{step}", parent / f"checkpoint-{step}"
    seal(written, **facts)
    shutil.rmtree(final, ignore_errors=True)  # of an earlier attempt, and damaged: it was not resumed from
    written.replace(final)
    _sync(parent)
    clear(parent)
    return final


def prune(parent: Path, keep: int, spare: int = -1) -> None:
    """Remove whole checkpoints but the newest `keep`, and but the newest one whose step is at most `spare`."""
    found = whole(parent)
    spared = next((path for path in reversed(found) if step_of(path) <= spare), None)
    for path in found[:-keep]:
        if path != spared:
            _remove(path)


def drop_after(parent: Path, step: int) -> None:
    """Remove the checkpoints of later steps than `step`."""
    for path in folders(parent):
        if step_of(path) > step:
            _remove(path)


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint so that a kill in between leaves none that looks whole."""
    (checkpoint / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(checkpoint, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Bring a folder's names onto the disk, where the file system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
