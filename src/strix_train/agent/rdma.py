"""RDMA adapters as the kernel shows them: ports, their state, and their GID tables.

Layout: Documentation/ABI/stable/sysfs-class-infiniband of the kernel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def adapters(root: Path) -> list[dict[str, Any]]:
    """Every port of every adapter; `gids`: index, gid, type ("RoCE v2", "IB/RoCE v1") and network interface of each."""
    found = []
    base = root / "sys/class/infiniband"
    for device in _names(base):
        for port in sorted(_names(base / device / "ports"), key=int):
            place = base / device / "ports" / port
            found.append(
                {
                    "device": device,
                    "port": int(port),
                    "state": _read(place / "state").partition(":")[2].strip(),
                    "link_layer": _read(place / "link_layer"),
                    "rate": _read(place / "rate"),
                    "firmware": _read(base / device / "fw_ver"),
                    "driver": _driver(base / device / "device/driver"),
                    "gids": _gids(place),
                }
            )
    return found


def _gids(place: Path) -> list[dict[str, Any]]:
    found = []
    for index in sorted(int(name) for name in _names(place / "gids") if name.isdigit()):
        gid = _read(place / "gids" / str(index))
        if gid and gid != _NO_GID:
            found.append(
                {
                    "index": index,
                    "gid": gid,
                    "type": _read(place / "gid_attrs/types" / str(index)),
                    "interface": _read(place / "gid_attrs/ndevs" / str(index)),
                }
            )
    return found


def _driver(link: Path) -> str:
    return link.resolve().name if link.exists() else ""


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    """A value, stripped; entries of a GID table that are not in use cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
