"""Which package a file of an image belongs to: dpkg's lists and wheels' RECORD files say it. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from strix_finetune.lockmodel import normalize
from strix_finetune.oci.whole import STATUS, Whole

_INFO = "var/lib/dpkg/info/"
_RECORD = re.compile(r"(?P<place>.*)/(?P<name>[^/]+?)-(?P<version>[^/-]+)\.dist-info/RECORD")
_BYTE_CODE = re.compile(r"(?P<folder>.*?)/?__pycache__/(?P<stem>.+)\.cpython-\d+(?:\.opt-\d)?\.pyc")
# a folder that nobody owns is named to this depth
_DEPTH = 3


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """`kind`: "deb", or "pip" for what a wheel brought."""

    kind: str
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def packages(whole: Whole) -> dict[tuple[str, str], str]:
    """(kind, name) → version of every package that is installed."""
    found = {("deb", name): version for name, version in _debs(whole.texts.get(STATUS, b""))}
    for path in whole.texts:
        if (match := _RECORD.fullmatch(path)) and not _by_dpkg(match["place"]):
            found["pip", normalize(match["name"])] = match["version"]
    return found


def owners(whole: Whole) -> dict[str, Package]:
    """Path → package, for every path that a package names, byte code with its source."""
    found: dict[str, Package] = {}
    versions = dict(_debs(whole.texts.get(STATUS, b"")))
    for path, text in whole.texts.items():
        if match := _RECORD.fullmatch(path):
            if not _by_dpkg(match["place"]):
                package = Package("pip", normalize(match["name"]), match["version"])
                found |= dict.fromkeys(_recorded(text, match["place"]), package)
        elif path.startswith(_INFO):
            # of several architectures: NAME:ARCHITECTURE.list
            name = path.removeprefix(_INFO).removesuffix(".list").partition(":")[0]
            package = Package("deb", name, versions.get(name, ""))
            for line in text.decode("utf-8", "surrogateescape").splitlines():
                owned = line.strip("/")
                # /bin and the like lead to /usr/bin
                found[owned if owned in whole.tree else f"usr/{owned}"] = package
    for path in whole.tree:
        if path not in found and (match := _BYTE_CODE.fullmatch(path)):
            source = posixpath.join(match["folder"], f"{match['stem']}.py")
            if source in found:
                found[path] = found[source]
    return found


def label(path: str, found: Mapping[str, Package]) -> str:
    """The package of a file, or the folder that it is in."""
    package = found.get(path)
    if package:
        return str(package)
    parts = path.split("/")[:-1][:_DEPTH]
    return f"/{'/'.join(parts)}"


def _by_dpkg(place: str) -> bool:
    """Debian installs Python's packages into folders of another name, and owns them itself."""
    return place.endswith("/dist-packages")


def _debs(status: bytes) -> Iterator[tuple[str, str]]:
    for paragraph in status.decode("utf-8", "replace").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status", "").endswith(" installed") and "Package" in fields:
            yield fields["Package"], fields.get("Version", "")


def _recorded(text: bytes, place: str) -> Iterator[str]:
    import csv

    for row in csv.reader(text.decode("utf-8", "replace").splitlines()):
        if row and not row[0].startswith("/"):
            yield posixpath.normpath(posixpath.join(place, row[0]))
