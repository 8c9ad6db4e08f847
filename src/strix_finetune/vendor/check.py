"""Whether a vendored folder holds what its `vendor.json` says: every file is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from strix_finetune.errors import Place, Problem
from strix_finetune.fetch import is_whole
from strix_finetune.vendor import manifest
from strix_finetune.vendor.manifest import Entry, Manifest


def faults(folder: Path, listed: Manifest) -> Iterator[Problem]:
    """What is missing, and what is not the file that the manifest lists."""
    for name, lock in sorted(listed.locks.items()):
        if not lock.complete:
            cure = f"go on with 'strix-finetune vendor {folder}'"
            yield Problem(f"it does not hold all that {name} needs: vendoring was interrupted", Place(folder), cure)
    for entry in listed.files.values():
        if problem := fault(folder, entry):
            yield problem


def fault(folder: Path, entry: Entry, *, read: bool = True) -> Problem | None:
    """What is wrong with one file; its content counts only with `read`."""
    path = folder / entry.path
    cure = f"run 'strix-finetune vendor {folder}' on a machine with a network"
    if not path.is_file():
        return Problem("this vendored file is missing", Place(path), cure)
    size = path.stat().st_size
    if entry.size and size != entry.size:
        return Problem(f"this file has {size} bytes, and {manifest.NAME} lists {entry.size}", Place(path), cure)
    if read and not is_whole(path, entry.sha256, entry.size):
        return Problem(f"this is not the file that {manifest.NAME} lists: its sha256 differs", Place(path), cure)
    return None
