"""What is installed in a site-packages folder, as its .dist-info folders say."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

# name, extras, an exact version, a marker: the only form in which these wheels pin one another
_EXACT = re.compile(r"^([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?==\s*([^;)\s,]+)\)?\s*(?:;\s*(.*))?$")
_EXTRA = re.compile(r"""\bextra\s*==\s*["']([^"']+)["']""")


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of RECORD: path relative to the site; sha256 in urlsafe base64 without padding, "" where it says none;
    size in bytes, -1 where it says none."""

    path: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Installed:
    """A distribution: normalized name, version as written, the site that it lies in."""

    name: str
    version: str
    site: Path
    info: Distribution

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def record(self) -> Iterator[Entry]:
        """The files that it brought; nothing when it keeps no RECORD."""
        text = self.info.read_text("RECORD") or ""
        for row in csv.reader(text.splitlines()):
            if row:
                path, digest, size = [*row, "", ""][:3]
                yield Entry(path, digest.removeprefix("sha256="), int(size) if size.isdigit() else -1)

    def pins(self, extra: str = "") -> dict[str, str]:
        """Normalized name → version of what it requires exactly: always, or with `extra` only."""
        found = {}
        for line in self.info.requires or ():
            match = _EXACT.match(line.strip())
            if match and ((_EXTRA.findall(match[3] or "") or [""])[0]) == extra:
                found[normalize(match[1])] = match[2]
        return found

    def extras(self) -> list[str]:
        """The extras that it offers."""
        return list(self.info.metadata.get_all("Provides-Extra") or ())


def installed(site: Path) -> list[Installed]:
    """Every distribution in `site`; two of one name when two are there."""
    found = []
    for entry in distributions(path=[str(site)]):
        name = entry.metadata["Name"]
        if name:
            found.append(Installed(normalize(name), entry.version, site, entry))
    return sorted(found, key=lambda item: (item.name, item.version))


def imported() -> dict[str, Installed]:
    """Normalized name → the distribution that this Python imports: of two of one name the first that it finds."""
    found: dict[str, Installed] = {}
    for folder in dict.fromkeys(sys.path):
        for item in installed(Path(folder)):
            found.setdefault(item.name, item)
    return found


def stand_in(have: Iterable[Installed]) -> str:
    """The first distribution that is a stub of this project's tests and computes nothing; "" in every real image."""
    return next((str(item) for item in have if item.info.read_text("STANDIN")), "")


def normalize(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def same_version(left: str, right: str) -> bool:
    """Whether two spellings mean one version: case, and the separators of the local part, do not count."""

    def plain(version: str) -> str:
        public, _, local = version.strip().lower().partition("+")
        return f"{public}+{re.sub(r'[-_.]', '.', local)}"

    return plain(left) == plain(right)
