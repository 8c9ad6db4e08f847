"""Are the files of a distribution those that its wheel brought?"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection
from pathlib import Path

from .sites import Entry, Installed

SHOWN = 3


def record_faults(item: Installed, *, contents: bool, allowed: Collection[Path] = ()) -> list[str]:
    """One sentence for what is missing, one for what has changed; several files are named by the first few.

    Sizes are always compared, contents when asked (that reads everything). `allowed`: what was replaced on purpose.
    """
    missing, changed, count = [], [], 0
    for entry in item.record():
        path = item.site / entry.path
        if path in allowed or entry.path.endswith((".pyc", "/RECORD")):
            continue
        count += 1
        if not path.is_file():
            missing.append(entry.path)
        elif _differs(path, entry, contents):
            changed.append(entry.path)
    faults = []
    if not count:
        faults.append(f"{item} has no RECORD, so nobody can tell whether its files are its own")
    if missing:
        faults.append(f"{item} lacks {_some(missing)}")
    if changed:
        faults.append(f"{item} does not have the content of its wheel in {_some(changed)}")
    return faults


def _differs(path: Path, entry: Entry, contents: bool) -> bool:
    if entry.size >= 0 and path.stat().st_size != entry.size:
        return True
    return contents and bool(entry.sha256) and entry.sha256 != _sha256(path)


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - SHOWN} more files" if len(paths) > SHOWN else ""
    return ", ".join(paths[:SHOWN]) + more


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
