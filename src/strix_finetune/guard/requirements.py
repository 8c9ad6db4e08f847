"""What installed distributions want of one another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .sites import Installed, normalize


def requirement_faults(have: Iterable[Installed], around: Mapping[str, Installed]) -> tuple[list[str], set[str]]:
    """Of what `have` wants without extras: what is `around` in a version that will not do; the names of what is not."""
    # not of the standard library; every image in which this is asked has it
    from packaging.requirements import Requirement

    faults: list[str] = []
    absent: set[str] = set()
    for item in have:
        for text in item.info.requires or ():
            wanted = Requirement(text)
            if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
                continue
            found = around.get(normalize(wanted.name))
            if found is None:
                absent.add(normalize(wanted.name))
            elif not wanted.specifier.contains(found.version, prereleases=True):
                faults.append(f"{item.name} wants {wanted}, and it is {found.version}")
    return faults, absent
