"""RDMA adapters as the kernel shows them: ports, their state, and their GID tables.

Layout: Documentation/ABI/stable/sysfs-class-infiniband of the kernel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .sysfs import names, read

_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def adapters(root: Path) -> list[dict[str, Any]]:
    """Every port of every adapter; `gids`: index, gid, type ("RoCE v2", "IB/RoCE v1") and network interface of each."""
    found = []
    base = root / "sys/class/infiniband"
    for device in names(base):
        for port in sorted(names(base / device / "ports"), key=int):
            place = base / device / "ports" / port
            found.append(
                {
                    "device": device,
                    "port": int(port),
                    "state": read(place / "state").partition(":")[2].strip(),
                    "link_layer": read(place / "link_layer"),
                    "rate": read(place / "rate"),
                    "firmware": read(base / device / "fw_ver"),
                    "driver": _driver(base / device / "device/driver"),
                    "gids": _gids(place),
                }
            )
    return found


def _gids(place: Path) -> list[dict[str, Any]]:
    found = []
    for index in sorted(int(name) for name in names(place / "gids") if name.isdigit()):
        gid = read(place / "gids" / str(index))
        if gid and gid != _NO_GID:
            found.append(
                {
                    "index": index,
                    "gid": gid,
                    "type": read(place / "gid_attrs/types" / str(index)),
                    "interface": read(place / "gid_attrs/ndevs" / str(index)),
                }
            )
    return found


def _driver(link: Path) -> str:
    return link.resolve().name if link.exists() else ""
