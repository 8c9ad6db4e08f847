"""Bytes in words for people, in powers of ten as registries and disks count."""

from __future__ import annotations


def mb(size: int) -> str:
    """ "1,234.5 MB": comparable at a glance where sizes stand below each other."""
    return f"{size / 1e6:,.1f} MB"


def fitting(size: int) -> str:
    """In the unit that shows the most of it: "0.1 MB", "99.9 kB", "999 bytes"."""
    return mb(size) if size >= 100_000 else f"{size / 1e3:,.1f} kB" if size >= 1000 else f"{size} bytes"
