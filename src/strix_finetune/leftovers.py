"""Temporary files and folders that never stay: removed when the block ends, when the program ends before it does
(a thread that is not waited for), and by the next run when the program was killed. So a file is there whole or not."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

Remove = Callable[[Path], None]


def remove(path: Path) -> None:
    """Remove a file or a folder, or what is left of it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def temporary(folder: Path, name: str, kind: str = "part", remove: Remove = remove) -> Iterator[Path]:
    """A hidden name in `folder` that tells which process it belongs to; what is there at the end is removed."""
    path = folder / f".{name}.{threading.get_ident():x}.{os.getpid()}.{kind}"
    at_exit = atexit.register(partial(remove, path))
    try:
        yield path
    finally:
        remove(path)
        atexit.unregister(at_exit)


def write(path: Path, content: bytes | str, mode: int | None = None) -> None:
    """Put a file in its place, whole or not at all. `mode`: its rights from the beginning; None: as usual here."""
    with temporary(path.parent, path.name) as part:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
        if mode is not None:
            part.chmod(mode)
        part.replace(path)


def remove_leftovers(folder: Path, remove: Remove = remove) -> None:
    """Remove what temporary names of processes that are gone still hold."""
    for path in [*folder.glob(".*.*.*.part"), *folder.glob(".*.*.*.work")]:
        pid = path.suffixes[-2].removeprefix(".")
        # in a folder that many share, only one's own are one's business
        if pid.isdigit() and not Path("/proc", pid).exists() and path.lstat().st_uid == os.geteuid():
            remove(path)
