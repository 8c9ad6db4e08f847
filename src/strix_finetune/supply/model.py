"""A bill of materials as a value, before it is written in one format or another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote

from strix_finetune.supply.licences import Licence

Kind = Literal["deb", "pypi", "source", "own"]


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch of this project that a component carries: name of its file, and sha256."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Component:
    """One thing in an image. `sha256` is that of the file that it came from, where the lock knows it.

    `facts`: what else is known, by name. `affero`: its files under the AGPL → what they say of it.
    """

    kind: Kind
    name: str
    version: str
    purl: str
    licence: Licence | None = None
    sha256: str = ""
    url: str = ""
    patches: tuple[Patch, ...] = ()
    affero: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def ref(self) -> str:
        """Unique in one bill: the same distribution may be installed in two places."""
        return f"{self.purl}#{self.facts['place']}" if self.facts.get("place") else self.purl


@dataclass(frozen=True, slots=True)
class Bill:
    """Everything in one image.

    `date`: of the archive that it was made from. `checked`: whether it was held against its lock. `system`: id and
    version of its distribution, which scanners ask for.
    """

    layer: str
    target: str
    channel: str
    key: str
    date: str
    components: tuple[Component, ...]
    checked: bool
    system: tuple[str, str] = ("", "")

    @property
    def affero(self) -> dict[str, tuple[str, ...]]:
        """Component → its files under the AGPL; components that are under it as a whole have no files here."""
        found: dict[str, tuple[str, ...]] = {}
        for component in self.components:
            whole = component.licence is not None and "AGPL-" in component.licence.expression
            if component.affero or whole:
                found[component.name] = tuple(component.affero)
        return found


def purl(kind: str, name: str, version: str, **qualifiers: str) -> str:
    """A package URL: `kind` is its type and namespace ("deb/debian"); empty qualifiers are left out."""
    rest = "&".join(f"{key}={quote(value, safe=':/')}" for key, value in sorted(qualifiers.items()) if value)
    whole = f"pkg:{kind}/{quote(name, safe='')}@{quote(version, safe=':')}"
    return f"{whole}?{rest}" if rest else whole
