"""Temporary names beside the final one, and the removal of those whose process was killed."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path


def temporary(folder: Path, name: str, kind: str = "part") -> Path:
    """A hidden name in `folder` that tells which process it belongs to."""
    return folder / f".{name}.{threading.get_ident():x}.{os.getpid()}.{kind}"


def remove_leftovers(folder: Path, remove: Callable[[Path], None] | None = None) -> None:
    """Remove temporary files and folders of processes that are gone; `remove` knows how to remove a folder."""
    for path in [*folder.glob(".*.*.*.part"), *folder.glob(".*.*.*.work")]:
        pid = path.suffixes[-2].removeprefix(".")
        # in a folder that many share, only one's own are one's business
        if not pid.isdigit() or Path("/proc", pid).exists() or path.lstat().st_uid != os.geteuid():
            continue
        if path.is_dir() and not path.is_symlink():
            (remove or shutil.rmtree)(path)
        else:
            path.unlink(missing_ok=True)
