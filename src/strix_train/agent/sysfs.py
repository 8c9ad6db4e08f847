"""Files and folders that the kernel shows; what is not there, or cannot be read, is empty."""

from __future__ import annotations

from pathlib import Path


def names(folder: Path) -> list[str]:
    """What lies in a folder, sorted."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def read(path: Path) -> str:
    """A value, stripped; entries of a GID table that are not in use cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
