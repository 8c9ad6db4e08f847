"""Which version of a package is installed, by the files of dpkg, rpm and pacman."""

from __future__ import annotations

import re

from strix_finetune.doctor.host import Host

_DPKG = "var/lib/dpkg/status"
_PACMAN = "var/lib/pacman/local"
_RPM = ("usr/lib/sysimage/rpm/rpmdb.sqlite", "usr/share/rpm/rpmdb.sqlite", "var/lib/rpm/rpmdb.sqlite")


def version(host: Host, *names: str) -> tuple[str, str] | None:
    """(name, version) of the first of these packages that is installed; None without any."""
    return next(((name, found) for name in names if (found := _version(host, name))), None)


def _version(host: Host, name: str) -> str:
    if status := host.text(_DPKG):
        return _dpkg(status, name)
    for path in _RPM:
        if host.exists(path) and (place := host.place(path)):
            from strix_finetune.doctor import rpmdb

            return rpmdb.version(place, name) or ""
    for folder in host.names(_PACMAN):
        match = re.fullmatch(rf"{re.escape(name)}-([^-]+-[^-]+)", folder)
        if match:
            return match[1]
    return ""


def _dpkg(status: str, name: str) -> str:
    """The version in the paragraph of a package whose files are there; left configuration files do not count."""
    start = f"\n{status}".find(f"\nPackage: {name}\n")
    if start < 0:
        return ""
    paragraph = status[start : max(status.find("\n\n", start), start)] or status[start:]
    fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and not line.startswith(" "))
    return fields.get("Version", "") if fields.get("Status", "").endswith(" installed") else ""
